//! One end of the hand-over: a publisher, a subscriber and, for those who sleep, an event service
//! in each direction. Each is set up as iceoryx2's own benchmarks set it up.

use crate::payload::{fill, mismatches, read, StepWord, Touch};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut::SampleMut;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

type Bytes = [u8];
type Outgoing = SampleMut<ipc::Service, Bytes, ()>;
type Incoming = Sample<ipc::Service, Bytes, ()>;
pub type Failure = Box<dyn Error>;

#[derive(Clone, Copy, PartialEq)]
pub enum Wait {
    Spin,
    Listener,
    WaitSet,
}

#[derive(Clone)]
pub struct Plan {
    pub size: usize,
    pub iterations: u64,
    pub wait: Wait,
    pub touch: Touch,
    pub slow_ns: u64,
    pub corrupt: bool,
    /// 0: there and back. Else the near end sends one sample after the other, and the far end may
    /// have so many that it has not received.
    pub in_flight: usize,
    pub prefix: String,
}

// Samples that are written and compared whole before the clock starts: more than a publisher has,
// so that each of its pages has been touched.
pub const CHECKED: u64 = 6;
pub const WARM_UP: u64 = 200;
const SEED_THERE: u64 = 0x7468_6572_65;
const SEED_BACK: u64 = !SEED_THERE;

pub struct End {
    plan: Plan,
    near: bool,
    publisher: Publisher<ipc::Service, Bytes, ()>,
    subscriber: Subscriber<ipc::Service, Bytes, ()>,
    events: Option<(Notifier<ipc::Service>, Listener<ipc::Service>)>,
    waitset: WaitSet<ipc::Service>,
    // Dropped last: it holds the files that the ports are in.
    _node: Node<ipc::Service>,
    pub wrong: u64,
}

impl End {
    /// The near end makes the services, the far end opens them.
    pub fn new(plan: &Plan, near: bool) -> Result<Self, Failure> {
        let mut config = Config::default();
        config.global.prefix = FileName::new(plan.prefix.as_bytes())?;
        let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
        let (mine, theirs) = if near { ("there", "back") } else { ("back", "there") };
        let waiting = plan.in_flight.max(1);
        let channel = |name: &str| -> Result<_, Failure> {
            let builder = node
                .service_builder(&ServiceName::new(name)?)
                .publish_subscribe::<Bytes>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_buffer_size(waiting)
                .subscriber_max_borrowed_samples(1)
                .enable_safe_overflow(plan.in_flight == 0);
            Ok(if near { builder.create()? } else { builder.open()? })
        };
        let doorbell = |name: &str| -> Result<_, Failure> {
            let name = ServiceName::new(&format!("{name} event"))?;
            let builder = node.service_builder(&name).event().max_notifiers(1).max_listeners(1);
            Ok(if near { builder.create()? } else { builder.open()? })
        };
        let publisher = channel(mine)?
            .publisher_builder()
            .initial_max_slice_len(plan.size)
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        let subscriber = channel(theirs)?.subscriber_builder().create()?;
        let events = match plan.wait {
            Wait::Spin => None,
            _ => Some((
                doorbell(mine)?.notifier_builder().create()?,
                doorbell(theirs)?.listener_builder().create()?,
            )),
        };
        let waitset = WaitSetBuilder::new()
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()?;
        Ok(Self {
            plan: plan.clone(),
            near,
            publisher,
            subscriber,
            events,
            waitset,
            _node: node,
            wrong: 0,
        })
    }

    fn seed(&self, mine: bool) -> u64 {
        if self.near == mine { SEED_THERE } else { SEED_BACK }
    }

    fn loan(&self) -> Result<Outgoing, Failure> {
        let sample = self.publisher.loan_slice_uninit(self.plan.size)?;
        // SAFETY: any byte is a valid u8. The memory is the kernel's zeroed pages or an earlier
        // sample's, and the timed part changes one word of it, as that of exchange_lat does.
        Ok(unsafe { sample.assume_init() })
    }

    fn send(&self, sample: Outgoing) -> Result<(), Failure> {
        sample.send()?;
        if let Some((notifier, _)) = &self.events {
            notifier.notify()?;
        }
        Ok(())
    }

    fn receive(&self, attached: &Option<WaitSetGuard<'_, '_, ipc::Service>>) -> Result<Incoming, Failure> {
        loop {
            if let Some((_, listener)) = &self.events {
                if attached.is_some() {
                    self.waitset.wait_and_process_once(|_| {
                        let _ = listener.try_wait(|_| {});
                        CallbackProgression::Continue
                    })?;
                } else {
                    listener.blocking_wait(|_| {})?;
                }
            }
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(sample);
            }
        }
    }

    /// Steps 0 to `CHECKED` write and compare each byte; those after it one word. The samples that
    /// follow the warm-up go to `lap`, which is called after each round trip.
    pub fn play(&mut self, mut lap: impl FnMut(u64)) -> Result<(), Failure> {
        let end = CHECKED + WARM_UP + self.plan.iterations;
        let (mut wrong, seed_mine, seed_theirs) = (0, self.seed(true), self.seed(false));
        let this = &*self;
        let attached = match (&this.events, this.plan.wait) {
            (Some((_, listener)), Wait::WaitSet) => Some(this.waitset.attach_notification(listener)?),
            _ => None,
        };
        let mut next = Some(this.produce(seed_mine, 0)?);
        for step in 0..end {
            if this.near {
                this.send(next.take().ok_or("nothing is loaned")?)?;
                // The rest happens while the peer has it.
                next = this.produce_before(seed_mine, step + 1, end)?;
            }
            let sample = this.receive(&attached)?;
            wrong += this.check(&sample, seed_theirs, step);
            if !this.near {
                burn(this.plan.slow_ns);
                this.send(next.take().ok_or("nothing is loaned")?)?;
                drop(sample);
                next = this.produce_before(seed_mine, step + 1, end)?;
            }
            lap(step);
        }
        drop(attached);
        self.wrong += wrong;
        Ok(())
    }

    /// In one direction. `lap` is called after each sample, at either end.
    pub fn stream(&mut self, mut lap: impl FnMut(u64)) -> Result<(), Failure> {
        let end = CHECKED + WARM_UP + self.plan.iterations;
        let mut wrong = 0;
        for step in 0..end {
            if self.near {
                let sample = self.produce(SEED_THERE, step)?;
                burn(self.plan.slow_ns);
                self.send(sample)?;
            } else {
                let sample = self.receive(&None)?;
                wrong += self.check(&sample, SEED_THERE, step);
            }
            lap(step);
        }
        self.wrong += wrong;
        Ok(())
    }

    fn produce_before(&self, seed: u64, step: u64, end: u64) -> Result<Option<Outgoing>, Failure> {
        Ok(if step < end { Some(self.produce(seed, step)?) } else { None })
    }

    fn produce(&self, seed: u64, step: u64) -> Result<Outgoing, Failure> {
        let mut sample = self.loan()?;
        let damaged = self.plan.corrupt && self.near == (self.plan.in_flight > 0) && step == 1;
        if step < CHECKED {
            fill(sample.payload_mut(), seed ^ step);
            if damaged {
                sample.payload_mut()[self.plan.size / 2] ^= 0x10;
            }
        } else {
            StepWord::of(seed, step, self.plan.size).write(sample.payload_mut());
        }
        Ok(sample)
    }

    fn check(&self, sample: &Incoming, seed: u64, step: u64) -> u64 {
        let bytes = sample.payload();
        if step < CHECKED {
            return mismatches(bytes, seed ^ step);
        }
        black_box(read(self.plan.touch, bytes));
        u64::from(!StepWord::of(seed, step, self.plan.size).matches(bytes))
    }
}

/// Models work that the measured code should not have done.
fn burn(nanoseconds: u64) {
    if nanoseconds == 0 {
        return;
    }
    let until = Instant::now() + Duration::from_nanos(nanoseconds);
    while Instant::now() < until {}
}
