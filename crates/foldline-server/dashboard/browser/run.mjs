// Opens the dashboard in a real Chromium against a real proxy, with generated sessions: every view at three widths,
// light and dark. Fails on a console error, on content wider than the page, and on serious findings of axe-core.
// Usage: FOLDLINE=path/to/foldline node browser/run.mjs [--screenshots FOLDER]
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { runAgents } from './agent.mjs';
import { startUpstream } from './upstream.mjs';

const WIDTHS = [390, 1280, 2560];
const SCHEMES = ['light', 'dark'];
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const axe = readFileSync(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const shots = process.argv.includes('--screenshots') ? process.argv[process.argv.indexOf('--screenshots') + 1] : null;
const binary = process.env.FOLDLINE ?? new URL('../../../../target/debug/foldline', import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), 'foldline-browser-'));
const faults = [];

/** Starts the proxy on a free port. */
function startProxy(upstream) {
  const child = spawn(
    binary,
    [
      'serve',
      '--listen',
      '127.0.0.1:0',
      '--anthropic',
      upstream,
      '--window',
      '32000',
      '--archive',
      join(folder, 'archive.db'),
      '--observe-share',
      '5%',
    ],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder },
    },
  );
  return new Promise((resolve, reject) => {
    child.on('exit', () => reject(new Error('the proxy ended')));
    child.stdout.on('data', (data) => {
      const url = String(data).match(/listens on (\S+)/)?.[1];
      if (url) resolve({ child, url });
    });
  });
}

/** Checks the page as it is: width, accessibility. */
async function check(page, name) {
  const overflow = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  if (overflow > 0) faults.push(`${name}: content is ${overflow} px wider than the page`);
  // The policy of the page forbids scripts of others, so contexts with this check bypass it; one test runs under it.
  if (!(await page.evaluate(() => 'axe' in window))) await page.addScriptTag({ content: axe });
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  for (const violation of result.violations.filter((it) => ['serious', 'critical'].includes(it.impact))) {
    faults.push(
      `${name}: ${violation.id}: ${violation.nodes
        .map((node) => node.target.join(' '))
        .slice(0, 4)
        .join(' | ')}`,
    );
  }
}

async function open(browser, url, width, scheme, name) {
  const context = await browser.newContext({
    viewport: { width, height: Math.round(width < 600 ? 844 : width * 0.62) },
    colorScheme: scheme,
    bypassCSP: true,
  });
  const page = await context.newPage();
  page.on('console', (message) => message.type() === 'error' && faults.push(`${name}: console: ${message.text()}`));
  page.on('pageerror', (error) => faults.push(`${name}: ${error.message}`));
  const begin = Date.now();
  await page.goto(`${url}/foldline`, { waitUntil: 'load' });
  await page.waitForSelector('#safety');
  return { context, page, paint: Date.now() - begin };
}

const upstream = await startUpstream();
const proxy = await startProxy(upstream.url);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
if (shots) mkdirSync(shots, { recursive: true });
try {
  // Empty states.
  const empty = await open(browser, proxy.url, 1280, 'light', 'empty');
  await check(empty.page, 'empty');
  const text = await empty.page.innerText('main');
  for (const words of ['No request has come through', 'No session yet', 'Nothing has been folded yet']) {
    if (!text.includes(words)) faults.push(`empty: "${words}" is missing`);
  }
  if (shots) await empty.page.screenshot({ path: join(shots, 'empty.png'), fullPage: true });
  // The page is live: what the agents do appears without a reload.
  await runAgents(proxy.url);
  await empty.page.waitForFunction(() => document.querySelectorAll('.sessions li').length === 3, null, {
    timeout: 10_000,
  });
  await empty.context.close();

  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      const name = `${width} ${scheme}`;
      const { context, page, paint } = await open(browser, proxy.url, width, scheme, name);
      await page.waitForSelector('#table tbody tr');
      await page.waitForSelector('#session .chart');
      const groups = await page.innerText('#groups tbody tr:first-child');
      if (!/sessions\s+2\s+1/.test(groups)) faults.push(`${name}: folded and observed sessions: ${groups}`);
      await check(page, name);
      process.stdout.write(`${name}: first content after ${paint} ms\n`);
      if (shots) await page.screenshot({ path: join(shots, `${width}-${scheme}.png`), fullPage: true });
      // One session, one original.
      await page.locator('#table tbody button.link', { hasText: 'importer' }).click();
      await page.waitForSelector('#session .folds tbody tr');
      await page.locator('#session .folds button').first().click();
      await page.waitForFunction(
        () => document.querySelector('dialog pre + *, dialog section:nth-child(2) pre') !== null,
      );
      const original = await page.innerText('dialog section:nth-child(2) pre');
      if (!/value_|test import|looking at/.test(original))
        faults.push(`${name}: the original is not shown: ${original.slice(0, 80)}`);
      await check(page, `${name} original`);
      if (shots && scheme === 'light') await page.screenshot({ path: join(shots, `${width}-original.png`) });
      await page.keyboard.press('Escape');
      // Filter and sorting are in the address.
      await page.fill('#table input[type=search]', 'nightly');
      await page.locator('#table th button', { hasText: 'net' }).click();
      await page.waitForFunction(() => document.querySelectorAll('#table tbody tr').length === 1);
      if (!page.url().includes('filter=nightly') || !page.url().includes('sort=-net_usd'))
        faults.push(`${name}: address ${page.url()}`);
      await context.close();
    }
  }
  // Numbers on the page are those of the API, and a page under the real policy has no error.
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  page.on('console', (message) => message.type() === 'error' && faults.push(`policy: console: ${message.text()}`));
  await page.goto(`${proxy.url}/foldline/`);
  await page.waitForSelector('.big');
  const overview = await (await fetch(`${proxy.url}/foldline/api/v1/overview`)).json();
  const shown = await page.innerText('.big');
  const net = overview.totals.week.net_usd;
  const expected = `$${Math.abs(net).toFixed(2)}`;
  if (!shown.includes(expected)) faults.push(`net: the page shows ${shown}, the API ${net}`);
  await context.close();
} finally {
  await browser.close();
  proxy.child.removeAllListeners('exit');
  proxy.child.kill('SIGTERM');
  upstream.stop();
  rmSync(folder, { recursive: true, force: true });
}
for (const fault of faults) process.stderr.write(`${fault}\n`);
process.stdout.write(faults.length === 0 ? 'all views passed\n' : `${faults.length} faults\n`);
process.exit(faults.length === 0 ? 0 : 1);
