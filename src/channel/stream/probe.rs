//! Trials of the way to every other leader, at the join: a connection whose handshake succeeds, and which is closed then. They use the port,
//! the key and the settings that the channel will use, and leave nothing behind. The higher rank of two dials.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;

use super::StreamChannel;
use super::handshake::{self, Answer, CHALLENGE, Claim, Nonce, WELCOME};
use super::live::ConnectionRole;
use super::session::gather;
use super::streams::Streams;

/// The number of the connection that the hello of a trial claims.
pub(super) const TRIAL: u32 = u32::MAX;

/// The pause between two trials with one leader.
const PAUSE: Duration = Duration::from_millis(10);

/// A trial that takes longer is given up, and another one made: its first segment may be lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// A trial that this side has begun.
#[derive(Debug)]
struct Trial<Id> {
    id: Id,
    rank: Rank,
    until: Instant,
    /// The part of the peer's answer received so far.
    said: Vec<u8>,
    /// The hello that was sent.
    greeted: Option<(Nonce, Claim)>,
}

/// The trials under way, and the leaders with which one has succeeded.
#[derive(Debug)]
pub(super) struct Trials<Id> {
    all: Vec<Trial<Id>>,
    heard: BTreeSet<Rank>,
    /// The next trials with leaders with which one has failed, not earlier than this.
    next: BTreeMap<Rank, Instant>,
}

impl<Id> Default for Trials<Id> {
    fn default() -> Self {
        Self { all: vec![], heard: BTreeSet::new(), next: BTreeMap::new() }
    }
}

impl<Id: PartialEq> Trials<Id> {
    /// A leader has shown that it belongs to the group.
    pub(super) fn heard(&mut self, rank: Rank) {
        self.heard.insert(rank);
    }

    fn is_due(&self, now: Instant, rank: Rank) -> bool {
        !self.heard.contains(&rank)
            && self.next.get(&rank).is_none_or(|next| *next <= now)
            && self.all.iter().all(|trial| trial.rank != rank)
    }

    fn ended(&mut self, now: Instant, id: Id) {
        if let Some(at) = self.all.iter().position(|trial| trial.id == id) {
            self.next.insert(self.all.swap_remove(at).rank, now + PAUSE);
        }
    }
}

impl<S: Streams> StreamChannel<S> {
    /// Tries the way to all leaders of a lower rank that have not answered yet. To be called again and again, until
    /// [`has_heard_from`](Self::has_heard_from) says that all have.
    pub fn try_all(&mut self) {
        let now = self.now;
        while let Some(late) = self.trials.all.iter().find(|trial| trial.until <= now) {
            let id = late.id;
            self.trial_ended(now, id);
        }
        for at in 0.. {
            let Some(&peer) = self.directory.at(at).filter(|peer| peer.rank < self.rank) else { break };
            if !self.trials.is_due(now, peer.rank) {
                continue;
            }
            let remote = (peer.ip, peer.port).into();
            match self.live.streams_mut().connect(now, peer.local_ip.into(), remote) {
                Ok(id) => {
                    self.live.assign(id, ConnectionRole::Trial);
                    let (rank, until) = (peer.rank, now + PATIENCE);
                    self.trials.all.push(Trial { id, rank, until, said: vec![], greeted: None });
                }
                Err(why) => {
                    tracing::debug!(%remote, %why, "a trial will be made again");
                    self.trials.next.insert(peer.rank, now + PAUSE);
                }
            }
        }
    }

    /// Whether a trial with a leader has succeeded.
    pub fn has_heard_from(&self, rank: Rank) -> bool {
        self.trials.heard.contains(&rank)
    }

    /// Reads what the other side of a trial says.
    pub(super) fn on_trial(&mut self, now: Instant, id: S::Id) {
        let Some(trial) = self.trials.all.iter_mut().find(|trial| trial.id == id) else { return };
        loop {
            let total = if trial.greeted.is_some() { WELCOME } else { CHALLENGE };
            match gather(now, self.live.streams_mut(), id, &mut trial.said, total) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => return self.trial_ended(now, id),
            }
            let said = std::mem::take(&mut trial.said);
            if let Some((challenge, claim)) = &trial.greeted {
                if self.secrets.check_answer(challenge, claim, &said) == Some(Answer::Welcome) {
                    let rank = trial.rank;
                    self.trials.heard(rank);
                }
                return self.trial_ended(now, id);
            }
            let Some(challenge) = handshake::check_challenge(&said) else { return self.trial_ended(now, id) };
            let (from, crc, nonce) = (self.rank, self.settings.crc, self.secrets.nonce());
            let claim = Claim { from, to: trial.rank, connection: TRIAL, crc, nonce };
            trial.greeted = Some((challenge, claim));
            // There is room for the first few bytes of a connection, or its peer does not answer.
            let _ = self.live.streams_mut().write(now, id, &self.secrets.hello(&challenge, &claim));
        }
    }

    /// A trial is over.
    pub(super) fn trial_ended(&mut self, now: Instant, id: S::Id) {
        self.trials.ended(now, id);
        self.live.close(now, id);
    }

    /// No more trials are made.
    pub(super) fn end_trials(&mut self) {
        for trial in std::mem::take(&mut self.trials).all {
            self.live.close(self.now, trial.id);
        }
    }
}
