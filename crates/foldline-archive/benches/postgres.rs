//! The cost of an archive in PostgreSQL, as ratios and quantiles inside one run.
//!
//! `cargo xtask postgres --durable cargo bench -p foldline-archive --features postgres,testing --bench postgres -- store`
//! compares a durable store call of a crease (20 originals, 200 KB) with one bare commit of the same bytes. `-- unfold`
//! fills an archive with `UNFOLD_ORIGINALS` originals, ten million by default, and unfolds random ones; it needs no
//! `--durable`, without which a commit does not wait for the disk.
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
    let mut handles: Vec<Handle> = Vec::with_capacity(count);
    let (started, mut bytes) = (Instant::now(), 0);
    while handles.len() < count {
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
        bytes += texts.iter().map(String::len).sum::<usize>();
        if handles.len().is_multiple_of(1_000_000) {
            println!("unfold  {} million originals after {:.0?}", handles.len() / 1_000_000, started.elapsed());
        }
    }
    // The index of searches is not part of this measurement.
    database.query("TRUNCATE foldline.unindexed");
    let size = database.query("SELECT pg_size_pretty(pg_database_size(current_database()))");
    println!("unfold  {} MB of text, database of {}", bytes / 1_000_000, size[0][0]);
    database.query("ANALYZE foldline.original; ANALYZE foldline.pack");
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
