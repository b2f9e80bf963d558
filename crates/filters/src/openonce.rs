//! `openonce`: opens the device below once for all clients, however often they come and go.
//!
//! For devices that take long to open. If names choose the disk, each name has one. The first
//! client that asks for a disk opens it, and it stays open until the program ends. Clients that
//! come meanwhile wait, without a thread.

use std::collections::HashMap;
use std::sync::Arc;

use device::{
    Client, Connected, Device, Error, ErrorKind, Fault, Filter, Filtered, Over, Passes, Presence,
    Result,
};
use runtime::{Mutex, promise, spawn};

use crate::FilterKind;

/// Disks that may be open at a time.
const MOST: usize = 1024;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "openonce",
    summary: "opens the device below once for all clients",
    keeps_disk: false,
    example: "serve --filter=openonce memory 1M --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, _| Ok(Filtered::device(OpenOnce(Arc::default()), below)),
    ..FilterKind::PLAIN
};

/// The open devices, by name.
#[derive(Default)]
struct OpenDevices(Mutex<HashMap<String, Entry>>);

enum Entry {
    /// It is being opened, and these clients wait for it.
    Opening(Vec<Connected>),
    /// It is open, or failed, as the device below answered.
    Open(Option<Arc<dyn Device>>),
}

impl OpenDevices {
    /// Hands out the device under `name`, now or once it is open. Returns whether the caller must
    /// open it.
    fn wait(&self, name: &str, done: Connected) -> bool {
        let mut all = self.0.lock();
        let count = all.len();
        match all.get_mut(name) {
            Some(Entry::Opening(waiting)) => waiting.push(done),
            Some(Entry::Open(found)) => {
                let found = found.clone();
                drop(all);
                done(Ok(found));
            }
            None if count >= MOST => {
                drop(all);
                let action = format!("openonce: {MOST} exports are open, which is the limit");
                done(Err(Error::new(ErrorKind::Limit, Fault::User, action)));
            }
            None => {
                all.insert(name.to_owned(), Entry::Opening(vec![done]));
                return true;
            }
        }
        false
    }

    /// It was opened; or opening failed, and the next client may try again.
    fn answer(&self, name: &str, answer: &Result<Option<Arc<dyn Device>>>) {
        let mut all = self.0.lock();
        let entry = all.remove(name);
        if let Ok(found) = answer {
            all.insert(name.to_owned(), Entry::Open(found.clone()));
        }
        drop(all);
        let Some(Entry::Opening(waiting)) = entry else { return };
        for done in waiting {
            done(match answer {
                Ok(found) => Ok(found.clone()),
                Err(e) => Err(e.duplicate()),
            });
        }
    }
}

struct OpenOnce(Arc<OpenDevices>);

impl Filter for OpenOnce {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        let device = over.below.device();
        let name = if device.is_chosen_by_name() { client.export.clone() } else { String::new() };
        if !self.0.wait(&name, done) {
            return;
        }
        // It stays open when the client leaves.
        let first = Client { presence: Presence::default(), ..client.clone() };
        let (owed, answer) = promise();
        let opened = self.0.clone();
        spawn(async move {
            // There is none if the device below panicked.
            let answer = answer.await.unwrap_or_else(|| Err(Error::unanswered()));
            opened.answer(&name, &answer);
        });
        device.connect(&first, Box::new(move |answer| owed.keep(answer)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use device::model::Model;
    use device::{Listed, Session};
    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{client, put};
    use device::Edge;

    /// Has disks by name, and opens each when the test says so.
    #[derive(Default)]
    struct Slow {
        asked: Mutex<Vec<(String, Connected)>>,
        by_name: bool,
    }

    impl Session for Slow {
        fn connect(&self, client: &Client, done: Connected) {
            self.asked.lock().push((client.export.clone(), done));
        }
        fn is_chosen_by_name(&self) -> bool {
            self.by_name
        }
        fn list(&self, _: &Client, done: Listed) {
            done(Ok(Vec::new()));
        }
    }

    impl Slow {
        /// And a filter over it.
        fn below(by_name: bool) -> (Arc<Self>, Edge) {
            let slow = Arc::new(Self { by_name, ..Self::default() });
            let below = TestDevice::over(Model::new(512)).session_of(slow.clone()).shared();
            (slow, put("openonce", below, &[]).unwrap())
        }

        /// Opens all requested disks, or refuses them; returns their names.
        fn open(&self, refuse: bool) -> Vec<String> {
            let asked = std::mem::take(&mut *self.asked.lock());
            let open = |(name, done): (String, Connected)| {
                let own = TestDevice::new(4096);
                done(if refuse { Err(Error::invalid("no")) } else { Ok(Some(own)) });
                name
            };
            asked.into_iter().map(open).collect()
        }
    }

    type Promised = Result<Option<Arc<dyn Device>>>;

    fn ask(disk: &Edge, number: u64, export: &str) -> Receiver<Promised> {
        let (tx, rx) = channel();
        let this_client = Client { export: export.into(), ..client(number) };
        disk.device().connect(&this_client, Box::new(move |own| tx.send(own).unwrap()));
        this_client.presence.leave();
        rx
    }

    #[test]
    fn it_is_opened_once_for_all_clients_and_those_that_come_meanwhile_wait() {
        let (below, disk) = Slow::below(false);
        let (one, two) = (ask(&disk, 1, "a"), ask(&disk, 2, "b"));
        assert!(one.try_recv().is_err() && two.try_recv().is_err());
        assert_eq!(below.open(false), ["a"]);
        let own = disk.beside(one.try_recv().unwrap().unwrap().unwrap());
        own.write(&[7; 10], 0, false).unwrap();
        drop((own, two.try_recv().unwrap().unwrap()));
        let third = ask(&disk, 3, "").try_recv().unwrap().unwrap().unwrap();
        let mut bytes = [0; 10];
        disk.beside(third).read(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 10]);
        assert!(below.open(false).is_empty());
    }

    #[test]
    fn names_that_choose_have_a_disk_each_and_what_is_refused_may_be_asked_for_again() {
        let (below, disk) = Slow::below(true);
        let (a, b, again) = (ask(&disk, 1, "a"), ask(&disk, 2, "b"), ask(&disk, 3, "a"));
        assert_eq!(below.open(true), ["a", "b"]);
        for refused in [a, b, again] {
            assert!(refused.try_recv().unwrap().is_err());
        }
        let a = ask(&disk, 4, "a");
        assert_eq!(below.open(false), ["a"]);
        assert!(a.try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_device_that_never_answers_is_asked_again_by_the_next_client() {
        let (below, disk) = Slow::below(false);
        let (one, two) = (ask(&disk, 1, ""), ask(&disk, 2, ""));
        below.asked.lock().clear();
        for unanswered in [one, two] {
            assert!(unanswered.try_recv().unwrap().is_err());
        }
        let three = ask(&disk, 3, "");
        assert_eq!(below.open(false).len(), 1);
        assert!(three.try_recv().unwrap().is_ok());
    }

    #[test]
    fn names_that_clients_invent_do_not_open_disks_without_end() {
        let (below, disk) = Slow::below(true);
        for n in 0..MOST {
            let answer = ask(&disk, 1, &n.to_string());
            below.open(false);
            assert!(answer.try_recv().unwrap().is_ok());
        }
        let e = ask(&disk, 1, "more").try_recv().unwrap().err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Limit);
        assert!(ask(&disk, 1, "7").try_recv().unwrap().is_ok());
    }
}
