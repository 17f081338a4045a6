//! An answer in several rounds that the client sees as one.
//!
//! The model may call the hidden tool; the call is answered here and the next round goes on in the same
//! stream. What the client does not see is recorded before it has the end of the answer, so that its
//! next request can be healed.

use std::sync::Arc;

use bytes::Bytes;
use foldline::wire::{Asked, BodySplicer, Edit, Finished, Format, Gap, Next, NextBody, ReportedId, Request, Splicer};

use super::exchange::{RETRIES, fold};
use super::opening::{Opening, Rest, next};
use super::relay::{AnswerOf, Answered, Client, Heard, cut_off};
use super::server::Shared;
use super::turn::{Folded, Hidden, ToldBy, Turn};
use super::unfold::{self, OFFER};
use super::upstream::Outbound;

/// Rounds in which the model is given what it asks for.
const SERVED: usize = 4;
/// Rounds in all; a model that still asks then is stopped.
const MOST: usize = 8;

/// One answer.
pub(crate) struct Rounds {
    proxy: Arc<Shared>,
    format: Format,
    /// What the round that is running was asked with: the conversation as the model knows it, how it was
    /// folded, and the request.
    turn: Arc<Turn>,
    folded: Folded,
    outbound: Outbound,
    /// Where what the client will lack is remembered, and what it is.
    hidden: Hidden,
    gaps: Vec<Gap>,
}

/// What is sent next, or why nothing is.
enum Onward {
    Sent(Box<Opening>),
    Failed(String),
}

impl Rounds {
    pub(crate) fn new(proxy: Arc<Shared>, turn: Arc<Turn>, folded: Folded, outbound: Outbound) -> Self {
        let hidden = folded.hidden.clone();
        Self { proxy, format: turn.format, turn, folded, outbound, hidden, gaps: Vec::new() }
    }

    /// Answers that come as bodies. Gives the body for the client, or why there is none.
    pub(crate) async fn whole(mut self, mut body: Bytes) -> Result<(Bytes, Heard), String> {
        let mut splicer = BodySplicer::new(self.format, OFFER.name).reporting(self.folded.reported);
        loop {
            match splicer.round(&body) {
                Ok(NextBody::Finished { body, finished }) => return Ok((body.into(), self.finish(*finished).await)),
                Ok(NextBody::Continue(asked)) => match self.go_on(&asked).await {
                    Onward::Sent(opening) if matches!(opening.rest, Rest::Nothing) => {
                        body = opening.begun.concat().into()
                    }
                    Onward::Sent(_) => return Err("the answer could not be continued".into()),
                    Onward::Failed(why) => return Err(why),
                },
                // Something that no splicer understands is the client's to read.
                Err(_) => return Ok((body, None)),
            }
        }
    }

    /// Answers that come as streams.
    pub(crate) async fn streamed(mut self, mut opening: Opening, client: Client) -> Heard {
        let patience = self.proxy.settings.patience;
        let mut splicer = Splicer::new(self.format, OFFER.name).reporting(self.folded.reported);
        let mut again = false;
        loop {
            let mut out = Vec::new();
            for piece in std::mem::take(&mut opening.begun) {
                splicer.push(&piece, &mut out);
            }
            let broke = loop {
                // The end of a round with hidden calls waits until they are recorded.
                if !out.is_empty() && !splicer.hides() {
                    client.send(Ok(std::mem::take(&mut out).into())).await.ok()?;
                }
                let (Rest::Events(body) | Rest::Unread(body)) = &mut opening.rest else {
                    break match std::mem::replace(&mut opening.rest, Rest::Nothing) {
                        Rest::Broken(why) => Some(why),
                        _ => None,
                    };
                };
                let piece = next(body, patience.stall);
                tokio::pin!(piece);
                let piece = loop {
                    tokio::select! {
                        piece = &mut piece => break piece,
                        () = client.closed() => return None,
                        // A later round may have begun long before the model has read its prompt.
                        () = tokio::time::sleep(patience.silence), if !self.gaps.is_empty() => {
                            client.send(Ok(Bytes::from_static(splicer.keep_alive()))).await.ok()?;
                        }
                    }
                };
                match piece {
                    Ok(Some(piece)) => splicer.push(&piece, &mut out),
                    Ok(None) => break None,
                    Err(why) => break Some(why),
                }
            };
            let hid = splicer.hides();
            let onward = match splicer.end_round(&mut out) {
                Next::Finished(finished) => {
                    let heard = self.finish(*finished).await;
                    client.send(Ok(out.into())).await.ok()?;
                    if let Some(why) = broke {
                        cut_off(&client, why).await;
                    }
                    return heard;
                }
                Next::Continue(asked) => {
                    if !out.is_empty() {
                        client.send(Ok(out.into())).await.ok()?;
                    }
                    again = false;
                    self.waiting(&asked, &splicer, &client).await?
                }
                // In the first round the client has seen what came. It is cut off as the proxy was; a
                // provider that ends without an end is the client's to judge, unless it lacks something.
                Next::Broken(_) if self.gaps.is_empty() => {
                    client.send(Ok(out.into())).await.ok()?;
                    let broke = broke.or_else(|| hid.then(|| "the stream ended early".into()));
                    if let Some(why) = broke {
                        cut_off(&client, why).await;
                    }
                    return None;
                }
                Next::Broken(broken) if !broken.shown && !again => {
                    again = true;
                    self.send().await
                }
                Next::Broken(broken) => match broken.told.is_empty() {
                    true => Onward::Failed(broke.unwrap_or_else(|| "the answer could not be continued".into())),
                    false => {
                        client.send(Ok(broken.told.into())).await.ok()?;
                        return None;
                    }
                },
            };
            opening = match onward {
                Onward::Sent(opening) => *opening,
                Onward::Failed(why) => {
                    let mut told = Vec::new();
                    splicer.fail(&why, &mut told);
                    client.send(Ok(told.into())).await.ok()?;
                    return None;
                }
            };
        }
    }

    /// Goes on, telling the client meanwhile that it has not been forgotten.
    async fn waiting(&mut self, asked: &Asked, splicer: &Splicer, client: &Client) -> Option<Onward> {
        let silence = self.proxy.settings.patience.silence;
        let onward = self.go_on(asked);
        tokio::pin!(onward);
        loop {
            tokio::select! {
                onward = &mut onward => return Some(onward),
                () = tokio::time::sleep(silence) => {
                    client.send(Ok(Bytes::from_static(splicer.keep_alive()))).await.ok()?;
                }
                () = client.closed() => return None,
            }
        }
    }

    /// Answers the hidden calls of a round and sends the next one.
    async fn go_on(&mut self, asked: &Asked) -> Onward {
        if self.gaps.len() >= MOST {
            return Onward::Failed("the model does not stop unfolding".into());
        }
        let answers = self.answers(asked).await;
        let answers = self.fitted(answers);
        let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
        let longer = Request::parse(self.format, &self.folded.known).and_then(|request| {
            let before = request.conversation().messages.len();
            let elements = asked.continuation(&answers).into_iter();
            request.splice(&elements.map(|json| Edit::InsertJson { before, json }).collect::<Vec<_>>())
        });
        let longer = match longer {
            Ok(body) => Bytes::from(body.into_owned()),
            Err(error) => return Onward::Failed(error.to_string()),
        };
        self.gaps.push(asked.gap(&answers));
        // A later round is folded as the client's next request will be, so that both begin alike.
        self.turn = Arc::new(Turn { body: longer.clone(), told_by: ToldBy::Us, ..Turn::clone(&self.turn) });
        match fold(&self.proxy, Some(&self.turn), None).await {
            Some(folded) => self.ask(folded),
            None => (self.outbound.body, self.folded.known) = (offered(self.format, &longer), longer),
        }
        self.send().await
    }

    fn ask(&mut self, folded: Folded) {
        self.outbound.body = folded.body.clone().unwrap_or_else(|| offered(self.format, &folded.known));
        self.folded = folded;
    }

    /// The answers as far as there is room for them. A quarter of the window can be had by a crease.
    fn fitted(&self, answers: Vec<String>) -> Vec<String> {
        let Folded { budget, sent, model, .. } = &self.folded;
        let mut room = budget.saturating_sub(*sent).max(budget / 4);
        let fitted = answers.into_iter().map(|answer| {
            let answer = unfold::fitted(answer, room, &model.meter);
            room = room.saturating_sub(model.meter.text(&answer));
            answer
        });
        fitted.collect()
    }

    async fn send(&mut self) -> Onward {
        let stall = self.proxy.settings.patience.stall;
        let mut tries = 0;
        loop {
            let opening = match self.proxy.providers.send(&self.outbound).await {
                Ok(answered) => Opening::of(answered, self.format, true, stall).await,
                Err(why) => return Onward::Failed(why.to_string()),
            };
            if let Some(overflow) = opening.overflow.filter(|_| tries < RETRIES) {
                tries += 1;
                if let Some(tighter) = self.proxy.tighter(Some(&self.turn), Some(&self.folded), overflow).await {
                    self.ask(tighter);
                    continue;
                }
            }
            if opening.head.status.is_success() {
                self.proxy.settled(&self.folded).await;
                return Onward::Sent(Box::new(opening));
            }
            let body = opening.begun.concat();
            let said = foldline::wire::ApiError::parse(&body).message;
            return Onward::Failed(format!("the upstream answered {}: {said}", opening.head.status));
        }
    }

    async fn answers(&self, asked: &Asked) -> Vec<String> {
        if self.gaps.len() >= SERVED {
            return asked.calls.iter().map(|_| unfold::NO_MORE.to_owned()).collect();
        }
        let (calls, proxy, shelf) = (asked.calls.clone(), self.proxy.clone(), self.folded.journal.clone());
        let held = self.folded.held.clone();
        let count = calls.len();
        let looked_up = tokio::task::spawn_blocking(move || {
            calls.iter().map(|call| unfold::answer(call, shelf.as_ref(), &held, &proxy.metrics)).collect()
        });
        looked_up.await.unwrap_or_else(|_| vec!["The archive could not be read.".to_owned(); count])
    }

    /// Records what the client lacks, and gives what was heard.
    async fn finish(mut self, finished: Finished) -> Heard {
        let id = finished.response.id.map(|id| id.into_owned());
        let stored_as = id.filter(|_| self.folded.reported == ReportedId::Last);
        let mixed = finished.mixed.is_some();
        if let Some(mixed) = &finished.mixed {
            let answers = self.answers(mixed).await;
            self.gaps.push(mixed.mixed_gap(&answers.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        let several = !self.gaps.is_empty();
        if several || stored_as.is_some() {
            let (proxy, turn, gaps) = (self.proxy.clone(), self.turn.clone(), self.gaps);
            // What is hidden is about the client's own request, whatever was sent in later rounds.
            let folded = Folded { hidden: self.hidden, ..self.folded };
            let recorded = tokio::task::spawn_blocking(move || {
                if let Some(id) = &stored_as {
                    turn.record_handles(&proxy, &folded, id);
                }
                if several {
                    turn.hide(&proxy, &folded, gaps, stored_as.as_deref().filter(|_| mixed));
                }
            })
            .await;
            if recorded.is_err() {
                self.proxy.metrics.fault("panic");
            }
        }
        Some(Answered { usage: finished.usage, rounds: if several { AnswerOf::Several } else { AnswerOf::One } })
    }
}

/// A request with the tool of ours in it, and not folded.
fn offered(format: Format, body: &Bytes) -> Bytes {
    let request = Request::parse(format, body).map(|request| request.offering(&OFFER));
    request.and_then(|request| request.splice(&[])).map_or_else(|_| body.clone(), |it| it.into_owned().into())
}
