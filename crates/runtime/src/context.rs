//! What a program gives to everything that it opens, devices and filters alike: a pool, timers, the
//! program's control, and a log. A program has one.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::Mutex;
use crate::{Control, Timers, WorkPool};

/// Threads of a program that opens a disk or two: enough to keep both busy.
const FEW: usize = 16;

/// The context that something is opened with. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Context {
    /// For work that may block a thread; [`WorkPool::for_computing`] is for work that keeps a
    /// processor busy.
    pub pool: WorkPool,
    /// For work that is due later.
    pub timers: Timers,
    /// The program around it.
    pub control: Control,
    /// For messages that no client can be told, and that are no reason to stop.
    pub log: OperatorLog,
    /// How long to wait for peers, by default.
    pub patience: Patience,
    /// Debug output and flags.
    pub debugging: Debugging,
    shared: Arc<Mutex<Vec<Common>>>,
}

/// How long to wait for a peer, and for what.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Patience {
    /// How long to keep trying to reach it at the start; `None`: one attempt.
    pub open: Option<Duration>,
    /// How long requests wait for a lost peer to come back; `None`: not at all.
    pub reconnect: Option<Duration>,
    /// How long one that owes a reply may be silent; `None`: for ever.
    pub request: Option<Duration>,
}

/// Debug output and flags. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Debugging {
    /// Whether to log what happens.
    pub verbose: bool,
    /// The flags `NAME.FLAG=N` that were not taken yet.
    flags: Arc<Mutex<Vec<String>>>,
}

impl Debugging {
    /// These flags, written `NAME.FLAG=N`.
    #[must_use]
    pub fn new(verbose: bool, flags: Vec<String>) -> Self {
        Self { verbose, flags: Arc::new(Mutex::new(flags)) }
    }

    /// Takes the flags of `name`: `FLAG=N`.
    #[must_use]
    pub fn take(&self, name: &str) -> Vec<String> {
        let own = |flag: &str| {
            let flag = flag.strip_prefix(name)?.strip_prefix('.')?;
            Some(flag.to_owned())
        };
        let mut flags = self.flags.lock();
        let taken = flags.iter().filter_map(|flag| own(flag)).collect();
        flags.retain(|flag| own(flag).is_none());
        taken
    }

    /// The flags that were not taken.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        self.flags.lock().clone()
    }
}

/// Takes lines for the operator of the program. Cheap to clone.
#[derive(Clone)]
pub struct OperatorLog(Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>);

impl OperatorLog {
    /// A log whose lines go to `say`, which must not block.
    pub fn new(say: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(say))
    }

    /// Logs a line.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        (self.0)(what);
    }
}

/// Lines are dropped.
impl Default for OperatorLog {
    fn default() -> Self {
        Self::new(|_| {})
    }
}

crate::debug_as!(OperatorLog);

/// State that is shared by all that were opened with the same words.
#[derive(Debug)]
struct Common {
    words: Box<dyn Any + Send>,
    state: Arc<dyn Any + Send + Sync>,
}

/// For a program that opens a disk or two and keeps no client waiting.
impl Default for Context {
    fn default() -> Self {
        Self::new(WorkPool::undivided(FEW))
    }
}

impl Context {
    /// A context of its own, whose work runs in `pool`.
    #[must_use]
    pub fn new(pool: WorkPool) -> Self {
        let (timers, control, log) =
            (Timers::default(), Control::default(), OperatorLog::default());
        let (patience, debugging) = (Patience::default(), Debugging::default());
        Self { pool, timers, control, log, patience, debugging, shared: Arc::default() }
    }

    /// The same with this patience for peers.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// The same with this debug output.
    #[must_use]
    pub fn with_debugging(self, debugging: Debugging) -> Self {
        Self { debugging, ..self }
    }

    /// The same for a part of the program that may end before the rest.
    #[must_use]
    pub fn part(&self) -> Self {
        Self { control: self.control.part(), ..self.clone() }
    }

    /// The same with a log.
    #[must_use]
    pub fn with_log(self, log: OperatorLog) -> Self {
        Self { log, ..self }
    }

    /// The state that is shared by all that were opened with the same words: each export has
    /// filters of its own, but they share a file to write to, a limit, a count of clients. The
    /// first one makes it.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn common<W, T, E>(
        &self,
        words: &W,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E>
    where
        W: Any + Clone + PartialEq + Send,
        T: Any + Send + Sync,
    {
        let mut shared = self.shared.lock();
        let same = shared.iter().filter(|common| common.words.downcast_ref() == Some(words));
        if let Some(found) = same.filter_map(|c| c.state.clone().downcast().ok()).next() {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        shared.push(Common { words: Box::new(words.clone()), state: made.clone() });
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_taken_by_the_part_that_it_names_and_left_otherwise() {
        let flags = ["a.b=1", "a.c.d=2", "ab.c=3"].map(str::to_owned);
        let debugging = Debugging::new(false, flags.to_vec());
        assert_eq!(debugging.clone().take("a"), ["b=1", "c.d=2"]);
        assert_eq!(debugging.left(), ["ab.c=3"]);
        assert!(debugging.take("a").is_empty());
    }

    #[test]
    fn the_same_words_have_one_thing_in_common_and_others_another() {
        let context = Context::default();
        let common =
            |words: &str, n: u32| context.common(&words.to_owned(), || Ok::<_, ()>(n)).map(|n| *n);
        assert_eq!(common("a", 1), Ok(1));
        assert_eq!(common("b", 2), Ok(2));
        assert_eq!(common("a", 3), Ok(1));
        let other = context.clone().common(&"a".to_owned(), || Ok::<_, ()>("of another type"));
        assert_eq!(other.map(|text| *text), Ok("of another type"));
        assert_eq!(context.common(&"c".to_owned(), || Err::<u32, _>("no")), Err("no"));
        assert_eq!(common("c", 4), Ok(4), "what was not made is made later");
    }
}
