//! Whenever the program or a connection dies, one id is one job with one answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod program;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use program::{KEY, Place, Program, ROOMY, Random, batch, demand_exactly, ingest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

const KILLS: usize = 100;
const CLIENTS: u64 = 6;

/// Sends one id after the other, each until it gets an answer, and some again afterwards, until it is told to stop.
async fn client(
    number: u64,
    at: watch::Receiver<SocketAddr>,
    stop: watch::Receiver<bool>,
) -> BTreeMap<String, Bytes> {
    let (mut random, mut answers) = (Random(0x5eed + number), BTreeMap::<String, Bytes>::new());
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    for i in 0.. {
        if *stop.borrow() {
            break;
        }
        let fresh = format!("client-{number}-batch-{i}");
        let again = answers.keys().nth(random.below(answers.len().max(1) as u64) as usize).cloned();
        for id in std::iter::once(fresh).chain(again.filter(|_| random.below(3) == 0)) {
            let body = loop {
                pause.tick().await;
                let address = *at.borrow();
                match ingest(address, &id).await {
                    Ok(reply) if reply.status == 202 => break reply.body,
                    Ok(reply) => assert!([409, 503].contains(&reply.status), "{reply:?}"),
                    Err(_) => {} // Nobody listens, or the connection broke off.
                }
            };
            let before = answers.insert(id.clone(), body.clone());
            assert!(before.is_none_or(|before| before == body), "two answers for {id}");
        }
    }
    answers
}

async fn kills(place: Place) {
    let mut random = Random(0xdead);
    let mut program = Program::start(&place, &ROOMY).await;
    let (address, at) = watch::channel(program.address);
    let (stop, stopped) = watch::channel(false);
    let clients: Vec<_> =
        (1..=CLIENTS).map(|number| tokio::spawn(client(number, at.clone(), stopped.clone()))).collect();
    for _ in 0..KILLS {
        program.kill_after(Duration::from_millis(20 + random.below(400))).await;
        program = Program::start(&place, &ROOMY).await;
        address.send(program.address).unwrap();
    }
    stop.send(true).unwrap();
    let mut answers = BTreeMap::new();
    for client in clients {
        answers.append(&mut client.await.unwrap());
    }
    assert!(answers.len() > KILLS, "only {} ids were answered between the kills", answers.len());
    demand_exactly(&place, &answers).await;
    program.stop().await;
}

#[tokio::test]
async fn a_hundred_kills_lose_and_repeat_nothing_crash_on_sqlite() {
    kills(Place::sqlite()).await;
}

#[tokio::test]
async fn a_hundred_kills_lose_and_repeat_nothing_crash_on_postgres() {
    kills(Place::postgres()).await;
}

/// Sends a part of a request, or all of it, reads a part of the answer, or none, and hangs up.
async fn hang_up(address: SocketAddr, id: &str, random: &mut Random) {
    let body = batch(id);
    let request = format!(
        "POST /memory/ingest HTTP/1.1\r\nhost: memory.test\r\nx-api-key: {KEY}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let sent = match random.below(3) {
        0 => random.below(request.len() as u64) as usize,
        _ => request.len(),
    };
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request.as_bytes()[..sent]).await.unwrap();
    let mut read = [0; 16];
    match random.below(3) {
        0 if sent == request.len() => drop(stream.read(&mut read).await),
        // For a random while, in which the request may begin to run.
        _ => drop(
            tokio::time::timeout(Duration::from_micros(random.below(4_000)), stream.read(&mut read)).await,
        ),
    }
}

async fn hang_ups(place: Place) {
    let program = Program::start(&place, &ROOMY).await;
    let address = program.address;
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|number| {
            tokio::spawn(async move {
                let (mut random, mut answers) = (Random(0xcafe + number), BTreeMap::new());
                for i in 0..40 {
                    let id = format!("client-{number}-batch-{i}");
                    for _ in 0..=random.below(3) {
                        hang_up(address, &id, &mut random).await;
                    }
                    let mut pause = tokio::time::interval(Duration::from_millis(20));
                    let body = loop {
                        pause.tick().await;
                        let reply = ingest(address, &id).await.unwrap();
                        if reply.status == 202 {
                            break reply.body;
                        }
                        assert_eq!(reply.status, 409, "{reply:?}");
                    };
                    assert_eq!(ingest(address, &id).await.unwrap().body, body, "two answers for {id}");
                    answers.insert(id, body);
                }
                answers
            })
        })
        .collect();
    let mut answers = BTreeMap::new();
    for client in clients {
        answers.append(&mut client.await.unwrap());
    }
    demand_exactly(&place, &answers).await;
    program.stop().await;
}

#[tokio::test]
async fn clients_that_hang_up_lose_and_repeat_nothing_crash_on_sqlite() {
    hang_ups(Place::sqlite()).await;
}

#[tokio::test]
async fn clients_that_hang_up_lose_and_repeat_nothing_crash_on_postgres() {
    hang_ups(Place::postgres()).await;
}
