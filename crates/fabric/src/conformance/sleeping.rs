//! Sleeping and wake-ups.

use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::pair::{End, Pair, ok, pattern};
use super::{Factory, Hardware};
use crate::{Event, MAX_MESSAGE};

const PING_PONGS: u32 = 3000;

/// Sleeps until a wake-up or the next completion; returns false after `seconds` without one.
fn sleep(end: &End, seconds: i64) -> bool {
    let fd = end.node.fabric.wake_fd();
    let completion = end.node.fabric.next_completion().map(Timespec::try_from);
    if let Some(until) = completion.map(ok) {
        ok(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&until)));
        return true;
    }
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    ok(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout))) > 0
}

/// Polls, sleeping in between, until a message arrives; returns it with the number of sleeps.
fn message(end: &mut End) -> (Vec<u8>, u32) {
    let mut sleeps = 0;
    loop {
        end.poll();
        if let Some(event) = end.events.pop() {
            assert!(end.events.is_empty());
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            return (bytes, sleeps);
        }
        if end.fabric().arm() {
            sleeps += 1;
            assert!(sleep(end, 30), "a wake-up was lost");
            end.fabric().disarm();
        }
    }
}

/// Two racks that sleep between messages are always woken, whichever of them is faster.
pub fn no_wake_up_is_lost(factory: &impl Factory) {
    let hardware = Hardware { latency: Duration::ZERO, ..Hardware::FAST };
    let Pair { mut a, mut b } = Pair::new(factory, hardware);
    let echo = thread::spawn(move || {
        for round in 0..PING_PONGS {
            let (bytes, _) = message(&mut b);
            assert_eq!(bytes, round.to_le_bytes());
            ok(b.send(&bytes));
        }
        b
    });
    let mut sleeps = 0;
    for round in 0..PING_PONGS {
        ok(a.send(&round.to_le_bytes()));
        // Makes answers arrive before, during and after the transition to sleep.
        for _ in 0..(round % 64) * 8 {
            std::hint::spin_loop();
        }
        let (bytes, slept) = message(&mut a);
        assert_eq!(bytes, round.to_le_bytes());
        sleeps += slept;
    }
    assert!(sleeps > 0, "nothing was tested: it never slept");
    drop(ok(echo.join()));
}

/// A sender that sleeps because the ring is full is woken when there is room.
pub fn a_full_ring_wakes_its_sender(factory: &impl Factory) {
    const MESSAGES: u32 = 300;
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    let receiver = thread::spawn(move || {
        let mut received = 0;
        while received < MESSAGES {
            // Slow, so that the ring fills up.
            thread::sleep(Duration::from_millis(u64::from(received % 8 == 0)));
            b.poll();
            for event in b.events.drain(..) {
                let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
                assert!(bytes == pattern(MAX_MESSAGE, (received % 251) as u8));
                received += 1;
            }
        }
        b
    });
    let mut sent = 0;
    while sent < MESSAGES {
        if a.send(&pattern(MAX_MESSAGE, (sent % 251) as u8)).is_ok() {
            sent += 1;
            continue;
        }
        if a.fabric().arm() {
            assert!(sleep(&a, 30), "nobody said that there is room again");
        }
        a.fabric().disarm();
        a.poll();
        assert_eq!(a.events, []);
    }
    drop(ok(receiver.join()));
}

/// Polls until there is nothing to do, and arms. Wake-ups of the connection may be pending once.
fn fall_asleep(end: &mut End) {
    let start = Instant::now();
    loop {
        end.poll();
        if end.fabric().arm() && !sleep(end, 0) {
            return;
        }
        end.fabric().disarm();
        assert!(start.elapsed() < Duration::from_secs(30), "it never sleeps");
    }
}

/// Unflushed messages are sent before their sender sleeps, even if it never polls.
pub fn nothing_stays_behind_when_its_sender_sleeps(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    let (one, many) = (1_u32, 40);
    for round in 0..200 {
        let count = if round % 5 == 0 { many } else { one };
        for number in 0..count {
            // The peer takes everything, but this side may learn of it with a delay.
            while a.send_only(&[round, number].map(u32::to_le_bytes).concat()).is_err() {
                a.poll();
            }
        }
        a.fabric().arm();
        for number in 0..count {
            let bytes = next_message(&mut b);
            assert_eq!(bytes, [round, number].map(u32::to_le_bytes).concat());
        }
        a.fabric().disarm();
    }
}

/// Polls, sleeping in between, until the next message arrives.
fn next_message(end: &mut End) -> Vec<u8> {
    loop {
        if end.events.is_empty() {
            end.poll();
        }
        if !end.events.is_empty() {
            let Event::Message { bytes, .. } = end.events.remove(0) else { panic!("no message") };
            return bytes;
        }
        if end.fabric().arm() {
            assert!(sleep(end, 30), "something stayed behind");
        }
        end.fabric().disarm();
    }
}

/// A sleeping peer gets nothing of a round before its flush, and all of the round after it.
pub fn a_sleeper_is_woken_when_a_round_is_flushed(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    // Few enough messages that the sleeper need not report room.
    for round in 0..3 {
        fall_asleep(&mut b);
        for number in 0..10 {
            ok(a.send_only(&[round, number]));
        }
        assert!(!sleep(&b, 0), "it was woken before the round was over");
        a.flush();
        assert!(sleep(&b, 30), "nobody woke it");
        b.fabric().disarm();
        for number in 0..10 {
            assert_eq!(next_message(&mut b), [round, number]);
        }
    }
}

/// An idle fabric lets its thread sleep, and a new connection wakes it.
pub fn idle_fabrics_sleep(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    for end in [&mut a, &mut b] {
        fall_asleep(end);
    }
    let endpoint = b.endpoint;
    b.fabric().disconnect(endpoint);
    assert!(sleep(&a, 30), "the end of the endpoint does not wake");
}
