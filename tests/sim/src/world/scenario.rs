//! What may happen in a run. A failing run is shrunk by allowing less.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::chance::Chance;

/// A kind of thing that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Processes are killed.
    Kills,
    /// The API server fails, is slow, and forgets its history.
    ApiFaults,
    /// Calls of NFS are held, lost, cut off or refused, and the server crashes.
    NfsFaults,
    /// The NFS server restarts, is out of reach, full, read-only, or has another export in the place of the right one.
    Accidents,
    /// Administrators change policies.
    Administrators,
    /// Somebody follows up on what earlier events left.
    FollowUps,
}

impl Kind {
    /// All kinds, with the settings that turn them off.
    pub const ALL: [(Self, &str); 6] = [
        (Self::Kills, "KILLS"),
        (Self::ApiFaults, "API_FAULTS"),
        (Self::NfsFaults, "NFS_FAULTS"),
        (Self::Accidents, "ACCIDENTS"),
        (Self::Administrators, "ADMINISTRATORS"),
        (Self::FollowUps, "FOLLOW_UPS"),
    ];

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// What may happen in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// All chance in the run comes from it.
    pub seed: u64,
    /// Number of actions.
    pub actions: u32,
    /// Number of replicas of the operator, at most.
    pub replicas: u32,
    /// Time between two actions, at most, in milliseconds.
    pause: u32,
    /// The kinds that do not happen.
    without: u32,
    /// The actions that are left out: a bit for each [`CHUNKS`]th part of them.
    skip: u64,
    /// The situation that is arranged at the end, if it is not left to chance.
    pub case: Option<u64>,
}

/// Number of parts of a run that can be left out.
pub const CHUNKS: u32 = 64;
/// Times between two actions, at most, in milliseconds: in some runs, many actions overlap, and in others, each may have
/// ended before the next.
const PAUSES: [u32; 4] = [500, 1000, 2000, 4000];

impl Scenario {
    /// Returns everything that may happen in the run of a seed.
    pub fn new(seed: u64) -> Self {
        let pause = Chance::new(seed, "pause").choose(&PAUSES).copied();
        Self {
            seed,
            actions: 200,
            replicas: 3,
            pause: pause.unwrap_or(1000),
            without: 0,
            skip: 0,
            case: None,
        }
    }

    /// Reads the settings that [`Display`](fmt::Display) writes.
    pub fn from_settings(settings: &BTreeMap<&str, u64>) -> Self {
        let setting = |name: &str, default: u64| settings.get(name).copied().unwrap_or(default);
        let small = |name: &str, default: u32| u32::try_from(setting(name, default.into())).unwrap_or(default);
        let default = Self::new(setting("SEED", 1));
        let off = Kind::ALL.iter().filter(|(_, name)| setting(name, 1) == 0);
        Self {
            actions: small("ACTIONS", default.actions),
            replicas: small("REPLICAS", default.replicas),
            pause: small("PAUSE", default.pause),
            without: off.map(|(kind, _)| kind.bit()).sum(),
            skip: setting("SKIP", 0),
            case: settings.get("CASE").copied(),
            ..default
        }
    }

    /// Returns the time between two actions, at most.
    pub fn pause(&self) -> Duration {
        Duration::from_millis(self.pause.into())
    }

    /// Returns the same with another number of actions.
    #[must_use]
    pub fn with_actions(self, actions: u32) -> Self {
        Self { actions, ..self }
    }

    /// Returns the same with at most this number of replicas.
    #[must_use]
    pub fn with_replicas(self, replicas: u32) -> Self {
        Self { replicas, ..self }
    }

    /// Returns true if things of a kind may happen.
    pub fn has(&self, kind: Kind) -> bool {
        self.without & kind.bit() == 0
    }

    /// Returns the same without things of a kind.
    #[must_use]
    pub fn without(self, kind: Kind) -> Self {
        Self {
            without: self.without | kind.bit(),
            ..self
        }
    }

    /// Returns true if an action is not left out.
    pub fn executes(&self, action: u32) -> bool {
        let chunk = (action * CHUNKS).checked_div(self.actions).unwrap_or(0);
        self.skip & (1 << chunk) == 0
    }

    /// Returns the same without a part of the actions.
    #[must_use]
    pub fn skipping(self, chunk: u32) -> Self {
        Self {
            skip: self.skip | 1 << chunk,
            ..self
        }
    }
}

impl fmt::Display for Scenario {
    /// Writes the settings that repeat the run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::new(self.seed);
        write!(f, "SEED={} ACTIONS={}", self.seed, self.actions)?;
        if self.replicas != default.replicas {
            write!(f, " REPLICAS={}", self.replicas)?;
        }
        if self.pause != default.pause {
            write!(f, " PAUSE={}", self.pause)?;
        }
        for (_, name) in Kind::ALL.iter().filter(|(kind, _)| !self.has(*kind)) {
            write!(f, " {name}=0")?;
        }
        if self.skip != 0 {
            write!(f, " SKIP={}", self.skip)?;
        }
        if let Some(case) = self.case {
            write!(f, " CASE={case}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_scenario_repeat_it() {
        let scenario = Scenario::new(7).with_actions(150).with_replicas(1);
        let scenario = scenario.without(Kind::Kills).skipping(0).skipping(63);
        let scenario = Scenario {
            case: Some(3),
            ..scenario
        };
        let text = scenario.to_string();
        let settings = text.split(' ').filter_map(|setting| setting.split_once('='));
        let settings = settings.filter_map(|(name, value)| Some((name, value.parse().ok()?)));
        assert_eq!(Scenario::from_settings(&settings.collect()), scenario, "{text}");
        let executed: Vec<u32> = (0..150).filter(|action| scenario.executes(*action)).collect();
        assert_eq!((executed.first(), executed.last()), (Some(&3), Some(&147)));
    }
}
