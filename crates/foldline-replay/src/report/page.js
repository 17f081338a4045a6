"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const full = data.rows[0], subject = data.rows[data.subject];
const at = id => document.getElementById(id);
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + "\u00a0%";
const big = n => n >= 1e9 ? (n / 1e9).toFixed(1) + " G" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? Math.round(n / 1e3) + " k" : Math.round(n).toLocaleString("en");
const money = tokens => data.prices.base_usd > 0 ? "$" + (tokens * data.prices.base_usd / 1e6).toLocaleString("en", { maximumFractionDigits: 2, minimumFractionDigits: 2 }) : big(tokens) + " tokens";
const cost = usage => usage.read * data.prices.read + usage.written * data.prices.write + usage.output * data.prices.output;

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "line", "path", "circle", "rect", "text"].includes(name);
  const it = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
  it.append(...children);
  return it;
}

/* A plot is drawn for its actual width, so that text keeps its size on a phone. */
function plot(id, draw) {
  const place = at(id);
  let drawn = 0;
  new ResizeObserver(() => {
    const width = place.clientWidth;
    if (width && width !== drawn) { drawn = width; place.replaceChildren(...draw(width)); }
  }).observe(place);
  return () => { drawn = 0; const width = place.clientWidth; if (width) { drawn = width; place.replaceChildren(...draw(width)); } };
}

function tip(place) {
  const it = element("div", { class: "tip" });
  it.hidden = true;
  const show = (x, y, text) => {
    it.textContent = text; it.hidden = false;
    const left = Math.max(0, Math.min(x + 12, place.clientWidth - it.offsetWidth));
    it.style.left = left + "px"; it.style.top = Math.max(0, y - it.offsetHeight - 8) + "px";
  };
  return { it, show, hide: () => { it.hidden = true; } };
}

function ticks(low, high, count) {
  const span = high - low || 1, rough = span / count, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * base).find(s => s >= rough);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) out.push(v);
  return out;
}

/* Legend: pairs of a color's name and a label. */
const legend = entries => element("div", { class: "key" }, ...entries.map(([name, words]) => element("span", {}, element("i", { style: `background: var(--${name})` }), words)));

/* Labels are placed in this order: the subject, then the oracles. */
const rank = it => it.index === data.subject ? 0 : it.row.is_bound ? 1 : 2;

const kind = (row, index) => index === data.subject ? "ours" : row.is_bound ? "bound" : "other";

/* The name by which people recognize a session; its id if the recording has nothing better. */
const sessionName = it => [it.date, it.project, it.title].filter(Boolean).join(" \u00b7 ") || it.id;

/* The width of a text in a plot. */
const canvas = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  canvas.font = "600 12px " + getComputedStyle(document.body).fontFamily;
  return canvas.measureText(text).width;
}

function head() {
  const saved = 1 - subject.cost_with_retries.value;
  at("headline").classList.toggle("bad", saved < 0);
  at("headline").textContent = data.subject === 0
    ? `${data.conversations} sessions, ${data.calls.toLocaleString("en")} calls`
    : saved >= 0
      ? `${subject.name} would have cost ${percent(subject.cost_with_retries.value, 0)} of no compaction (input, incl. retries), with ${percent(subject.needed_context_kept.value, 1)} of the needed context kept`
      : `${subject.name} would have cost more than no compaction: ${percent(subject.cost_with_retries.value, 0)} of it (input, incl. retries)`;
  at("about").textContent = `${data.data_set}: ${data.conversations} sessions, ${data.calls.toLocaleString("en")} calls. Prices ${data.price_table}: cache write ${data.prices.write}, read ${data.prices.read}, output ${data.prices.output}, relative to input. Budget ${big(data.budget)} tokens. ${data.date}`;
  const spent = cost(subject.usage) + cost(subject.retry_usage);
  const figures = [
    ["Cost incl. retries", percent(subject.cost_with_retries.value, 0), `${money(spent)} instead of ${money(cost(full.usage))}; of that, retries ${money(cost(subject.retry_usage))}`],
    ["Input tokens sent", percent(subject.tokens.value, 0), "of those received"],
    ["Actions missing context", percent(subject.actions_missing_context.value), "they would have needed a retry"],
    ["Edits that apply", percent(subject.edits_that_apply.value), "their old text was sent in one piece"],
    ["Worst session", subject.worst_cost.toFixed(2), "times the cost of no compaction"],
    subject.optimal_oracle_share && ["Of the oracle's saving", percent(subject.optimal_oracle_share.value), "optimal schedule, incl. retries"],
  ].filter(Boolean);
  at("figures").append(...figures.map(([name, value, note]) => element("div", { class: "figure" }, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "note" }, note))));
}

function quality(width) {
  const height = Math.max(300, Math.min(460, width * 0.6)), left = 48, right = 16, top = 36, bottom = 40;
  const svg = element("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Needed context kept against cost incl. retries for every policy" });
  const xs = data.rows.map(r => 100 * r.cost_with_retries.value), ys = data.rows.map(r => 100 * r.needed_context_kept.value);
  /* The frame shows the relevant corner; outliers are drawn hollow at its edge. */
  const x0 = Math.max(0, Math.min(...xs) - 8), x1 = Math.min(Math.max(...xs) + 6, 128), y0 = Math.max(0, Math.min(...ys, 98) - 2, 84), y1 = 100;
  const x = v => left + (Math.min(v, x1) - x0) / (x1 - x0) * (width - left - right), y = v => top + (y1 - Math.max(v, y0)) / (y1 - y0) * (height - top - bottom);
  for (const v of ticks(x0, x1, width < 500 ? 4 : 8)) {
    svg.append(element("line", { class: "grid", x1: x(v), x2: x(v), y1: top, y2: height - bottom }), element("text", { x: x(v), y: height - bottom + 18, "text-anchor": "middle" }, `${v} %`));
  }
  for (const v of ticks(y0, y1, 5)) {
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }), element("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, `${v}`));
  }
  svg.append(element("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "cost incl. retries, of no compaction"));
  svg.append(element("text", { x: 0, y: 12, "text-anchor": "start" }, "needed context kept, %"));
  const hint = tip(at("quality"));
  const taken = data.rows.map(row => { const cx = x(100 * row.cost_with_retries.value), cy = y(100 * row.needed_context_kept.value); return [cx - 9, cy - 9, cx + 9, cy + 9]; });
  const order = data.rows.map((row, index) => ({ row, index })).sort((a, b) => rank(a) - rank(b));
  const marks = [], labels = [];
  /* Points at one place share a mark with all their numbers. */
  const numberAt = (cx, cy) => data.rows.flatMap((row, index) => Math.hypot(x(100 * row.cost_with_retries.value) - cx, y(100 * row.needed_context_kept.value) - cy) < 4 ? [index + 1] : []).join(",");
  for (const { row, index } of order) {
    const cx = x(100 * row.cost_with_retries.value), cy = y(100 * row.needed_context_kept.value), color = `var(--${kind(row, index)})`;
    const words = `${row.name}: cost incl. retries ${percent(row.cost_with_retries.value)}, needed context kept ${percent(row.needed_context_kept.value)}, actions missing context ${percent(row.actions_missing_context.value, 2)}`;
    const off = 100 * row.cost_with_retries.value > x1 || 100 * row.needed_context_kept.value < y0;
    const dot = element("circle", { cx, cy, r: 5 + 3 * numberAt(cx, cy).split(",").length, fill: off ? "var(--card)" : color, stroke: color, "stroke-width": off ? 2 : 0, tabindex: 0, "aria-label": words });
    dot.addEventListener("pointerenter", () => hint.show(cx, cy, words));
    dot.addEventListener("focus", () => hint.show(cx, cy, words));
    dot.addEventListener("pointerleave", hint.hide);
    dot.addEventListener("blur", hint.hide);
    /* Those drawn last are on top: the subject. */
    marks.unshift(dot, element("text", { class: off ? "number hollow" : "number", x: cx, y: cy + 3.5, "text-anchor": "middle" }, numberAt(cx, cy)));
    /* Every point has its number, by which the list names it. Its name is added where it overlaps nothing. */
    const name = row.name, w = textWidth(name);
    for (const [dx, dy, anchor] of [[13, 4, "start"], [-13, 4, "end"], [6, -13, "start"], [-6, -13, "end"], [6, 22, "start"], [-6, 22, "end"]]) {
      const lx = anchor === "start" ? cx + dx : cx + dx - w, ly = cy + dy;
      const box = [lx, ly - 11, lx + w, ly + 3];
      const free = box[0] > 0 && box[2] < width && box[1] > 0 && box[3] < height - bottom + 6 && taken.every(t => box[2] < t[0] || box[0] > t[2] || box[3] < t[1] || box[1] > t[3]);
      if (free) {
        taken.push(box);
        labels.push(element("text", { x: cx + dx, y: ly, "text-anchor": anchor, class: index === data.subject ? "strong" : "" }, name));
        break;
      }
    }
  }
  svg.append(...marks, ...labels);
  const key = [["ours", subject.name], ["bound", "oracles (know the future)"], ["other", "others; hollow: outside the frame"]];
  return [legend(key), svg, hint.it];
}

/* The names of the points, by number. */
function points() {
  at("points").append(...data.rows.map((row, index) => element("li", { class: kind(row, index) }, `${row.name}: cost incl. retries ${percent(row.cost_with_retries.value, 0)}, needed context kept ${percent(row.needed_context_kept.value)}`)));
}

function costs(width) {
  const rows = data.rows.map((row, index) => ({ row, index }));
  const widest = Math.max(...rows.map(({ row }) => textWidth(row.name))) + 14;
  const narrow = width < 560 || widest > width / 2, label = narrow ? 0 : widest, step = narrow ? 44 : 28, height = rows.length * step + 24;
  const svg = element("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Costs by cache reads, cache writes and retries" });
  const whole = cost(full.usage) || 1;
  const output = data.output * data.prices.output;
  const pieces = row => [["read", row.usage.read * data.prices.read], ["write", row.usage.written * data.prices.write], ["retry", cost(row.retry_usage)], ["output", output]];
  const most = Math.max(...rows.map(({ row }) => pieces(row).reduce((sum, [, v]) => sum + v, 0))) / whole;
  const scale = v => v / whole / most * (width - label - 60);
  rows.forEach(({ row, index }, line) => {
    const y = line * step + (narrow ? 18 : 4);
    svg.append(narrow
      ? element("text", { x: 0, y: y - 4, class: index === data.subject ? "strong" : "" }, row.name)
      : element("text", { x: label - 10, y: y + 14, "text-anchor": "end", class: index === data.subject ? "strong" : "" }, row.name));
    let from = label, total = 0;
    for (const [name, value] of pieces(row)) {
      const w = scale(value);
      if (w > 0.3) svg.append(element("rect", { x: from, y, width: Math.max(w - 1, 0.3), height: 18, rx: 2, fill: `var(--${name})` }));
      from += w;
      if (name !== "output") total += value;
    }
    svg.append(element("text", { x: from + 6, y: y + 14, class: index === data.subject ? "strong" : "" }, percent(total / whole, 0)));
  });
  return [legend([["read", "read from the cache"], ["write", "written to the cache"], ["retry", "retries for missing context"], ["output", "the model's output"]]), svg];
}

function numbers() {
  const columns = [
    ["tokens", r => percent(r.tokens.value)],
    ["cost", r => percent(r.cost.value)],
    ["cost incl. retries", r => r.cost_with_retries],
    ["worst session", r => r.worst_cost.toFixed(2)],
    ["needed context kept", r => r.needed_context_kept],
    ["needed strings kept", r => r.needed_strings_kept],
    ["context kept", r => percent(r.context_kept.value)],
    ["actions missing context", r => percent(r.actions_missing_context.value, 2)],
    ["edits that apply", r => percent(r.edits_that_apply.value)],
    ["artifact trail", r => `${percent(r.trail_recall.value)} / ${percent(r.trail_precision.value)}`],
    ["instructions kept", r => percent(r.instructions_kept)],
    ["% of oracle saving (pays)", r => r.paying_oracle_share],
    ["% of oracle saving (optimal)", r => r.optimal_oracle_share],
    ["foreign actions", r => percent(r.foreign.value)],
    ["creases", r => r.score.creases.toLocaleString("en")],
    ["unfolds exact", r => r.score.unfolded.total ? percent(r.score.unfolded.hits / r.score.unfolded.total, 2) : ""],
    ["laws broken", r => r.score.laws_broken.toLocaleString("en")],
    ["refused", r => r.score.refused.toLocaleString("en")],
    ["invented", r => big(r.score.invented_bytes) + " B"],
    ...data.windows.map((w, i) => [`fits ${w / 1000}k`, r => percent(r.fits[i], 0)]),
  ];
  const cell = value => value == null ? element("td", {}, "") : typeof value === "string" ? element("td", {}, value)
    : element("td", {}, percent(value.value), element("small", {}, `${percent(value.low)} to ${percent(value.high)}`));
  at("numbers").append(
    element("thead", {}, element("tr", {}, element("th", {}, "policy"), ...columns.map(([name]) => element("th", {}, name)))),
    element("tbody", {}, ...data.rows.map((row, index) => element("tr", { class: index === data.subject ? "ours" : "" }, element("td", {}, row.name), ...columns.map(([, value]) => cell(value(row)))))));
}

function prices() {
  const place = at("prices");
  place.append(
    element("thead", {}, element("tr", {}, element("th", {}, "policy"), ...data.costs.map(b => element("th", {}, b.price_table, element("small", {}, `${b.prices.write} / ${b.prices.read}`))))),
    element("tbody", {}, ...data.rows.map((row, index) => element("tr", { class: index === data.subject ? "ours" : "" }, element("td", {}, row.name), ...data.costs.map(b => element("td", {}, percent(b.rows[index][1])))))));
}

let chosen = 0;
function session(width) {
  const it = data.sessions[chosen];
  if (!it) return [];
  const height = Math.max(260, Math.min(380, width * 0.45)), left = 52, right = 12, top = 12, bottom = 34;
  const svg = element("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Tokens of each request" });
  const calls = it.received_tokens.length, most = Math.max(...it.received_tokens, ...it.sent_tokens) * 1.06;
  const shows = data.budget <= most * 1.6, high = shows ? Math.max(most, data.budget * 1.06) : most;
  const x = v => left + v / Math.max(calls - 1, 1) * (width - left - right), y = v => height - bottom - v / high * (height - top - bottom);
  for (const v of ticks(0, high, 5)) svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }), element("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, big(v)));
  for (const v of ticks(0, calls - 1, width < 500 ? 4 : 8).filter(Number.isInteger)) svg.append(element("text", { x: x(v), y: height - bottom + 18, "text-anchor": "middle" }, v));
  svg.append(element("text", { x: width - right, y: height - 2, "text-anchor": "end" }, "call"));
  if (shows) svg.append(element("line", { x1: left, x2: width - right, y1: y(data.budget), y2: y(data.budget), stroke: "var(--budget)", "stroke-dasharray": "5 4" }));
  for (const v of it.creases.length > 400 ? [] : it.creases) svg.append(element("line", { x1: x(v), x2: x(v), y1: height - bottom, y2: height - bottom + 5, stroke: "var(--ours)" }));
  const path = (values, color, w) => svg.append(element("path", { d: values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join(""), fill: "none", stroke: color, "stroke-width": w, "stroke-linejoin": "round" }));
  path(it.received_tokens, "var(--other)", 2);
  path(it.sent_tokens, "var(--ours)", 2.5);
  const hint = tip(at("session"));
  const cursor = element("line", { class: "axis", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), i = Math.max(0, Math.min(calls - 1, Math.round((event.clientX - box.left - left) / (width - left - right) * (calls - 1))));
    cursor.setAttribute("x1", x(i)); cursor.setAttribute("x2", x(i)); cursor.setAttribute("visibility", "visible");
    hint.show(x(i), y(it.sent_tokens[i] ?? 0), `call ${i}: ${big(it.sent_tokens[i] ?? 0)} sent, ${big(it.received_tokens[i])} received${it.creases.includes(i) ? ", crease" : ""}`);
  });
  svg.addEventListener("pointerleave", () => { hint.hide(); cursor.setAttribute("visibility", "hidden"); });
  const entries = [["other", `received (${full.name})`], ["ours", `sent (${subject.name}; ticks: creases)`], ...(shows ? [["budget", "budget"]] : [])];
  return [legend(entries), svg, hint.it];
}

function missing(it, id) {
  const kinds = { instruction: "instruction", prose: "assistant text", reasoning: "reasoning", tool_name: "a tool's name", call_id: "an id", argument: "arguments of", result: "result of" };
  const where = `message ${it.position.message}, ${kinds[it.position.kind] ?? it.position.kind} ${it.tool}, ${it.age} calls before${it.used_before ? ", used before" : ""}`;
  const out = element("div", { class: "miss" }, element("span", { class: "what" }, element("code", {}, it.identifier)), ` at ${id ? id + ", " : ""}call ${it.call}: ${where}`);
  if (it.line) out.append(element("code", { class: "line" }, it.line));
  if (it.handle) out.append(element("span", { class: "quiet" }, "The request contains its handle, by which the model could have unfolded it: ", element("code", {}, it.handle), " (a handle of this replay; it is not in your archive, and the original is in the recorded session)"));
  return out;
}

/* Shows the first entries, and the rest on demand. */
function list(id, all, few, none) {
  const out = all.slice(0, few);
  if (all.length > few) out.push(element("details", {}, element("summary", {}, `${all.length - few} more`), ...all.slice(few)));
  at(id).replaceChildren(...(out.length ? out : [element("p", { class: "quiet" }, none)]));
}

function choose(index, redraw) {
  chosen = index;
  const it = data.sessions[index];
  if (!it) return;
  at("session-line").replaceChildren(
    `${it.received_tokens.length} calls; cost incl. retries ${money(it.cost_with_retries)} instead of ${money(it.baseline_cost)} (${percent(it.cost_with_retries / it.baseline_cost, 0)}); ${it.actions_missing_context} actions missing context; needed context kept ${percent(it.needed_context_kept)}. Id: `, element("code", {}, it.id));
  list("missing", it.missing_context.map(m => missing(m)), 4, "Nothing.");
  if (redraw) redraw();
}

head();
plot("quality", quality);
points();
plot("costs", costs);
numbers();
prices();
const redraw = plot("session", session);
at("pick").append(...data.sessions.map((it, index) => element("option", { value: index }, `${sessionName(it)} (${it.received_tokens.length} calls, cost incl. retries ${percent(it.cost_with_retries / it.baseline_cost, 0)})`)));
at("pick").addEventListener("change", event => choose(+event.target.value, redraw));
at("sessions-note").textContent = data.sessions.length < data.conversations ? `The ${data.sessions.length} sessions with the highest costs, of ${data.conversations}.` : `All ${data.conversations} sessions, highest cost first.`;
choose(0);
const worst = data.sessions.flatMap(it => it.missing_context.map(m => ({ m, id: sessionName(it), extra: it.cost_with_retries - it.cost }))).sort((a, b) => b.m.age - a.m.age || b.extra - a.extra);
const spread = [];
for (const it of worst) if (spread.length < 30 && spread.filter(other => other.id === it.id).length < 3) spread.push(it);
list("worst", spread.map(({ m, id }) => missing(m, id)), 8, "None.");
