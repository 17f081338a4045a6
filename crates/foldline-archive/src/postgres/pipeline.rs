//! Transactions in one round trip: all statements are sent before the first response is read.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use deadpool_postgres::Object;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

/// A statement and its parameters.
pub(crate) type BoundStatement<'p> = (Statement, Vec<&'p (dyn ToSql + Sync)>);

/// Runs statements in one transaction and one round trip; returns the rows of each.
pub(crate) async fn run_pipeline(
    client: &Object,
    begin: &str,
    statements: &[BoundStatement<'_>],
) -> Result<Vec<Vec<Row>>, Error> {
    type Step<'s> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 's>>;
    let batch = |sql| -> Step<'_> { Box::pin(async move { client.batch_execute(sql).await.map(|()| Vec::new()) }) };
    let mut steps: Vec<Step<'_>> = vec![batch(begin)];
    for (statement, parameters) in statements {
        steps.push(Box::pin(async move { client.query(statement, parameters).await }));
    }
    // After an error the server rolls the transaction back instead.
    steps.push(batch("COMMIT"));
    let mut results: Vec<_> = join_in_order(steps).await.into_iter().collect::<Result<_, _>>()?;
    results.pop();
    results.remove(0);
    Ok(results)
}

/// Polls futures in their order, so that their requests are sent in it, and waits for all of them.
async fn join_in_order<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    })
    .await
}
