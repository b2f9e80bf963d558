//! Sending under TLS: the thread that finds no other sending takes the pieces out of the queue,
//! encrypts and sends them without its lock, and puts back what is left. Others only add to the
//! queue meanwhile.
//!
//! Nothing is sent from its place: a queued place is read first, as for sockets without sendfile.

use net::Sent;
use runtime::MutexGuard;

use super::Link;
use super::out::Out;
use super::sending::Queue;

impl Link {
    /// Sends `head`, which is nowhere else yet, and then the queue.
    pub(super) fn encrypt<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        mut head: &[u8],
    ) -> MutexGuard<'a, Queue> {
        while !queue.sending && !queue.fetching && !self.is_broken() {
            match queue.pieces.front() {
                None if head.is_empty() => break,
                Some(Out::Place(_)) if head.is_empty() => {
                    self.want(&mut queue);
                    break;
                }
                _ => {}
            }
            let (mut batch, skip) = (std::mem::take(&mut queue.pieces), queue.sent);
            queue.sending = true;
            drop(queue);
            let sent = self.send_pieces(head, &batch, skip);
            let waits = self.stream.unsent();
            queue = self.queue.lock();
            queue.sending = false;
            batch.append(&mut queue.pieces);
            queue.pieces = batch;
            if self.is_broken() {
                // It was abandoned meanwhile.
                self.fail(&mut queue);
                break;
            }
            self.count_cipher(&mut queue, waits);
            match sent {
                Ok(Sent::Bytes(n)) => {
                    let of_head = n.min(head.len() as u64);
                    head = head.get(usize::try_from(of_head).unwrap_or(0)..).unwrap_or(&[]);
                    self.consume(&mut queue, n, n - of_head);
                }
                Ok(Sent::Full) => {
                    queue.stops += 1;
                    break;
                }
                Ok(Sent::Short | Sent::Unable) | Err(_) => {
                    self.fail(&mut queue);
                    break;
                }
            }
        }
        if !head.is_empty() && !self.is_broken() {
            self.push_front(&mut queue, Out::Bytes(head.to_vec()));
        }
        self.arm(&mut queue);
        queue
    }
}
