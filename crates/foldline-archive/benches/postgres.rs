//! The cost of an archive in PostgreSQL, as ratios and quantiles inside one run.
//!
//! `cargo xtask postgres --durable cargo bench -p foldline-archive --features postgres,testing --bench postgres -- store`
//! compares a durable store call of a crease (20 originals, 200 KB) with one bare commit of the same bytes. `-- unfold`
//! fills an archive with `UNFOLD_ORIGINALS` originals, ten million by default, and unfolds random ones. The archive
//! stores the first of them; the server copies their rows and packs, with other handles, until there are enough. It needs
//! no `--durable`, without which a commit does not wait for the disk.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing bench stops, and it prints")]

mod support;

use std::time::{Duration, Instant};

use foldline::Handle;
use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::{TestDatabase, run_sql};
use foldline_archive::{Namespace, TenantArchive};
use tokio_postgres::NoTls;

use support::{RunTimer, SeededRng, original, quantile, random_text, sample_lines};

/// Originals of a store call that fills the archive.
const FILL_BATCH: usize = 1_000;
/// Originals that the archive stores; the rest are copies of their rows.
const MAX_STORED: usize = 100_000;

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |name: &str| names.is_empty() || names.iter().any(|selected| selected == name);
    let Ok(server) = std::env::var("TEST_POSTGRES_URL") else {
        println!("skipped: needs a PostgreSQL server, see `cargo xtask postgres`");
        return;
    };
    println!("server: fsync {}", run_sql(&server, "SHOW fsync")[0][0]);
    if runs("store") {
        bench_store(&TestDatabase::create(&server));
    }
    if runs("unfold") {
        bench_unfold(&TestDatabase::create(&server));
    }
}

fn local_tenant(database: &TestDatabase) -> TenantArchive {
    database.open().tenant(&Namespace::local())
}

/// A bare table, written by one statement that commits on its own.
struct BareTable {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
    insert: tokio_postgres::Statement,
}

impl BareTable {
    /// Creates a table whose values the server compresses, or stores as they are.
    fn create(url: &str, name: &str, storage: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (client, insert) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let table = format!(
                "CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, content bytea);
                 ALTER TABLE {name} ALTER COLUMN content SET STORAGE {storage}"
            );
            client.batch_execute(&table).await.unwrap();
            let insert = format!("INSERT INTO {name} (content) SELECT * FROM unnest($1::bytea[])");
            let insert = client.prepare(&insert).await.unwrap();
            (client, insert)
        });
        Self { runtime, client, insert }
    }

    /// Waits for an answer of the server and returns the time.
    fn ping(&self) -> Duration {
        let timer = RunTimer::start();
        self.runtime.block_on(self.client.execute("SELECT 1", &[])).unwrap();
        timer.elapsed()
    }

    /// Commits texts and returns the time.
    fn commit(&self, texts: &[String]) -> Duration {
        let bytes: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let started = Instant::now();
        self.runtime.block_on(self.client.execute(&self.insert, &[&bytes])).unwrap();
        started.elapsed()
    }
}

fn bench_store(database: &TestDatabase) {
    const CREASE_COUNT: usize = 300;
    let lines = sample_lines();
    let mut rng = SeededRng(1);
    let tenant = local_tenant(database).in_session("s");
    let compressed = BareTable::create(&database.url(), "compressed", "EXTENDED");
    let plain = BareTable::create(&database.url(), "plain", "EXTERNAL");
    let (mut ours, mut of_compressed, mut of_plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CREASE_COUNT {
        let texts: Vec<String> = (0..20).map(|_| random_text(&lines, &mut rng, 10_000)).collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        let started = Instant::now();
        tenant.store_durably(&originals).unwrap();
        ours.push(started.elapsed());
        of_compressed.push(compressed.commit(&texts));
        of_plain.push(plain.commit(&texts));
        std::thread::sleep(Duration::from_millis(5));
    }
    for share in [0.5, 0.9, 0.99] {
        let ours = quantile(&mut ours, share);
        for (what, bare) in [("compressed by the server", &mut of_compressed), ("not compressed", &mut of_plain)] {
            let bare = quantile(bare, share);
            let ratio = ours.as_secs_f64() / bare.as_secs_f64();
            println!(
                "store   p{:<3} archive {ours:>9.2?}   bare commit {bare:>9.2?} ({what})   ratio {ratio:.2}",
                share * 100.0
            );
        }
    }
}

fn bench_unfold(database: &TestDatabase) {
    let count: usize = std::env::var("UNFOLD_ORIGINALS").map_or(10_000_000, |count| count.parse().unwrap());
    let lines = sample_lines();
    let mut rng = SeededRng(2);
    let tenant = local_tenant(database);
    // The index of searches is not part of this measurement.
    database.query(
        "CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER discard BEFORE INSERT ON foldline.unindexed FOR EACH ROW EXECUTE FUNCTION discard()",
    );
    let (started, stored) = (Instant::now(), count.min(MAX_STORED));
    let mut handles: Vec<Handle> = Vec::with_capacity(stored);
    while handles.len() < stored {
        // The number makes each text different.
        let texts: Vec<String> = (0..FILL_BATCH)
            .map(|at| {
                let length = 60 + rng.next_below(100);
                format!("{}\n{}", handles.len() + at, random_text(&lines, &mut rng, length))
            })
            .collect();
        let originals: Vec<_> = texts.iter().map(|text| original(text.as_bytes())).collect();
        // A checkpoint of a slow disk may take longer than the limit of a call.
        while tenant.store_durably(&originals).is_err() {
            std::thread::sleep(Duration::from_secs(2));
        }
        handles.extend(originals.iter().map(|original| original.handle));
    }
    println!("unfold  {} originals stored after {:.0?}", handles.len(), started.elapsed());
    for copy in 1..count.div_ceil(stored) {
        database.query(&copy_rows(copy));
    }
    database.query("ANALYZE foldline.original; ANALYZE foldline.pack");
    let counted = "SET foldline.tenant = '*'; SELECT count(*), (SELECT count(*) FROM foldline.pack),
        pg_size_pretty(pg_database_size(current_database())) FROM foldline.original";
    let counted = database.query(counted);
    let [rows, packs, size] = counted[0].as_slice() else { panic!("{counted:?}") };
    println!("unfold  {rows} originals in {packs} packs after {:.0?}, database of {size}", started.elapsed());
    let bare = BareTable::create(&database.url(), "bare", "EXTERNAL");
    for round in ["first", "second", "third"] {
        let (mut times, mut bare_times) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            let handle = handles[rng.next_below(handles.len())];
            let timer = RunTimer::start();
            let unfolded = tenant.unfold(handle.as_str()).unwrap();
            times.push(timer.elapsed());
            assert_eq!(unfolded.info.handle, handle);
            bare_times.push(bare.ping());
        }
        for (what, times) in [("unfold", &mut times), ("SELECT 1", &mut bare_times)] {
            let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|share| quantile(times, share));
            println!("unfold  {round} {what:<8} p50 {half:.2?}   p99 {most:.2?}   p99.9 {nearly_all:.2?}");
        }
    }
}

/// Returns statements that copy the stored rows and their packs. Packs keep their contents; handles and hashes are random.
fn copy_rows(copy: usize) -> String {
    format!(
        "SET foldline.tenant = '*';
         INSERT INTO foldline.pack (tenant, id, length, content)
         SELECT p.tenant, p.id + {copy} * 1000000::bigint, p.length, p.content FROM foldline.pack AS p WHERE p.id < 1000000;
         INSERT INTO foldline.original (tenant, id, handle, hash, state, pack, start, description_len, length, tokens,
             message, session, tool, kept_at, carried_at)
         SELECT o.tenant, nextval('foldline.original_id'), left(md5(o.handle || '{copy}'), 12),
             decode(md5(o.handle || '{copy}') || md5('{copy}' || o.handle), 'hex'), o.state,
             o.pack + {copy} * 1000000::bigint, o.start, o.description_len, o.length, o.tokens, o.message, o.session,
             o.tool, o.kept_at, o.carried_at
         FROM foldline.original AS o WHERE o.pack < 1000000 ON CONFLICT DO NOTHING"
    )
}
