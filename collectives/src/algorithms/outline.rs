//! What an algorithm does, in numbers that need no plan: some phases, one after the other. An algorithm says its outline in
//! closed form, so that all algorithms can be priced before one operation, whatever the number of ranks and steps.

/// The phases of an algorithm.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outline {
    pub(crate) phases: Vec<Phase>,
    /// Other ranks whose memory is read or written where messages go straight, and those that do so to this rank's: of the rank
    /// with most of them.
    pub(crate) reaches: f64,
    /// The same of most ranks.
    pub(crate) usual: f64,
}

/// Rounds that are alike, one after the other: in each, some ranks give messages and some take them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Phase {
    pub(crate) rounds: f64,
    /// Rounds of these before which ranks wait for messages to arrive: the others begin while those are on their way.
    pub(crate) waits: f64,
    /// Of a rank that gives, in a round.
    pub(crate) gives: Side,
    /// Of a rank that takes.
    pub(crate) takes: Side,
    /// Whether what is taken is combined with what the rank has.
    pub(crate) combines: bool,
    /// Whether a word tells that a message may be taken, where it goes straight: it waits for what came in before.
    pub(crate) passes_on: bool,
    pub(crate) reach: Reach,
}

/// One side of the messages of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Side {
    /// Ranks that are on it at a time, on average.
    pub(crate) ranks: f64,
    /// Messages of the one that has most of them.
    pub(crate) messages: f64,
    /// Bytes of these.
    pub(crate) bytes: f64,
}

/// Which ranks have messages with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that many places apart, round.
    Apart(u32),
    /// Those whose numbers differ in that bit.
    Flipped(u32),
    /// Each with its parent in a tree of ranks that follow each other.
    Tree,
    /// All with all.
    All,
    /// Those of one node.
    Near,
    /// Those of one place on all nodes.
    Across,
}

impl Outline {
    /// No phases so far; the rank with most peers has so many, with messages both ways.
    pub(crate) fn with_peers(peers: impl Into<f64>) -> Self {
        let reaches = 2.0 * peers.into();
        Self { phases: Vec::new(), reaches, usual: reaches }
    }

    /// Most ranks have no more than so many peers.
    pub(crate) fn mostly(self, peers: impl Into<f64>) -> Self {
        Self { usual: (2.0 * peers.into()).min(self.reaches), ..self }
    }

    /// Messages go one way between two ranks.
    pub(crate) fn one_way(self) -> Self {
        Self { reaches: self.reaches / 2.0, usual: self.usual / 2.0, ..self }
    }

    pub(crate) fn then(mut self, phase: Phase) -> Self {
        self.phases.push(phase);
        self
    }

    pub(crate) fn then_all(mut self, phases: impl IntoIterator<Item = Phase>) -> Self {
        self.phases.extend(phases);
        self
    }
}

impl Phase {
    /// One round in which so many ranks give and take that many messages each, of so many bytes together.
    pub(crate) fn among(ranks: impl Into<f64>, messages: f64, bytes: f64, reach: Reach) -> Self {
        let side = Side { ranks: ranks.into(), messages, bytes };
        Self { rounds: 1.0, waits: 1.0, gives: side, takes: side, combines: false, passes_on: false, reach }
    }

    /// One round in which one rank gives so many others a message each, of so many bytes each.
    pub(crate) fn spread(others: impl Into<f64>, messages: f64, bytes: f64, reach: Reach) -> Self {
        let others = others.into();
        let gives = Side { ranks: 1.0, messages: others * messages, bytes: others * bytes };
        Self { gives, ..Self::among(others, messages, bytes, reach) }
    }

    /// The same the other way: one rank takes what so many others give.
    pub(crate) fn collect(others: impl Into<f64>, messages: f64, bytes: f64, reach: Reach) -> Self {
        let spread = Self::spread(others, messages, bytes, reach);
        Self { gives: spread.takes, takes: spread.gives, ..spread }
    }

    /// So many ranks copy so many bytes each from one place of their memory to another.
    pub(crate) fn local(ranks: impl Into<f64>, bytes: f64) -> Self {
        let takes = Side { ranks: ranks.into(), messages: 0.0, bytes };
        Self { gives: Side::default(), takes, ..Self::among(0, 0.0, 0.0, Reach::Near) }
    }

    /// So many of these groups of ranks at a time, each for itself.
    pub(crate) fn of_groups(mut self, groups: impl Into<f64>) -> Self {
        let groups = groups.into();
        self.gives.ranks *= groups;
        self.takes.ranks *= groups;
        self
    }

    pub(crate) fn times(self, rounds: impl Into<f64>) -> Self {
        let rounds = rounds.into();
        Self { rounds, waits: rounds, ..self }
    }

    /// Of all rounds so many wait for messages.
    pub(crate) fn waiting(self, waits: f64) -> Self {
        Self { waits: waits.min(self.rounds), ..self }
    }

    /// Twice as much at a time.
    pub(crate) fn doubled(mut self) -> Self {
        for side in [&mut self.gives, &mut self.takes] {
            side.messages *= 2.0;
            side.bytes *= 2.0;
        }
        self
    }

    pub(crate) fn combining(self) -> Self {
        Self { combines: true, ..self }
    }

    pub(crate) fn passing_on(self) -> Self {
        Self { passes_on: true, ..self }
    }
}
