//! Question: what does iceoryx2 take to hand over a loaned sample between two processes? There and
//! back; the figure is half a round trip. Used as its own benchmarks use it: the receiver reads the
//! memory that the sender loaned and wrote, and no payload is copied.
//!
//! --wait spin: both ends ask for the next sample until it is there. --wait listener, waitset: both
//! ends sleep, and each sample comes with a notification.
//! --touch word: a random word of the sample is written and checked, as `sluice perf exchange_lat`
//! does. --touch page, line: the receiver also reads a byte of each page of 4 KiB, of each line.
//! --in-flight N: in one direction, N samples of which may wait for the receiver (spinning); the
//! figure is samples a second, as the receiver counts them.

mod ends;
mod payload;

use ends::{End, Failure, Plan, Wait, CHECKED, WARM_UP};
use payload::Touch;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const CORRUPT: u8 = 4;
const NOTHING_TO_RUN_ON: u8 = 77;

struct Options {
    plan: Plan,
    far: bool,
    limit_seconds: u32,
    mode: [String; 2],
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        plan: Plan {
            size: 64,
            iterations: 100_000,
            wait: Wait::Spin,
            touch: Touch::Word,
            slow_ns: 0,
            corrupt: false,
            in_flight: 0,
            prefix: format!("bench_iceoryx2_{}_", std::process::id()),
        },
        far: false,
        limit_seconds: 120,
        mode: ["spin".into(), "word".into()],
    };
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        match flag.as_str() {
            "--corrupt" => options.plan.corrupt = true,
            "--far" => options.far = true,
            _ => {
                let value = rest.next().ok_or(format!("{flag} needs a value"))?;
                take(&mut options, flag, value)?;
            }
        }
    }
    if options.plan.size < 8 || options.plan.size > 4 << 30 || options.plan.iterations == 0 {
        return Err("--size is from 8 to 4 GiB, --iterations at least 1".into());
    }
    if options.plan.in_flight > 0 && options.plan.wait != Wait::Spin {
        return Err("--in-flight is for --wait spin".into());
    }
    Ok(options)
}

fn take(options: &mut Options, flag: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{flag} {value}: is no number"));
    let plan = &mut options.plan;
    match flag {
        "--size" => plan.size = number()? as usize,
        "--iterations" => plan.iterations = number()?,
        "--slow-ns" => plan.slow_ns = number()?,
        "--in-flight" => plan.in_flight = number()? as usize,
        "--limit-seconds" => options.limit_seconds = number()? as u32,
        "--prefix" => plan.prefix = value.into(),
        "--wait" => {
            options.mode[0] = value.into();
            plan.wait = match value {
                "spin" => Wait::Spin,
                "listener" => Wait::Listener,
                "waitset" => Wait::WaitSet,
                _ => return Err(format!("--wait {value}: is none of spin listener waitset")),
            }
        }
        "--touch" => {
            options.mode[1] = value.into();
            plan.touch = match value {
                "word" => Touch::Word,
                "page" => Touch::Page,
                "line" => Touch::Line,
                _ => return Err(format!("--touch {value}: is none of word page line")),
            }
        }
        _ => return Err(format!("{flag}: no such flag")),
    }
    Ok(())
}

/// Pins this process to the `index`-th processor that it may use; false if there is none.
fn pin(index: usize) -> bool {
    // SAFETY: plain system calls on a set of our own.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let bytes = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, bytes, &mut allowed) != 0 {
            return false;
        }
        let mut cpus = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        let Some(cpu) = cpus.nth(index) else { return false };
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, bytes, &one) == 0
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: reads the time stamp counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The peer: answers each sample, then says how many were wrong.
fn far(options: &Options) -> Result<u8, Failure> {
    // SAFETY: plain system call; the peer goes with the process that started it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    pin(0);
    let mut end = End::new(&options.plan, false)?;
    println!("ready");
    std::io::stdout().flush()?;
    if options.plan.in_flight == 0 {
        end.play(|_| {})?;
        println!("wrong {}", end.wrong);
        return Ok(0);
    }
    let (mut began, mut cpu) = (Instant::now(), 0.0);
    end.stream(|step| {
        if step + 1 == CHECKED + WARM_UP {
            (began, cpu) = (Instant::now(), cpu_seconds());
        }
    })?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!("wrong {}", end.wrong);
    println!("{seconds} {cpu}");
    Ok(0)
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Starts the peer with the flags of this process.
fn start_peer(options: &Options, arguments: &[String]) -> Result<std::process::Child, Failure> {
    Ok(Command::new(std::env::current_exe()?)
        .args(arguments)
        .args(["--far", "--prefix", &options.plan.prefix])
        .stdout(Stdio::piped())
        .spawn()?)
}

fn near(options: &Options, arguments: &[String]) -> Result<u8, Failure> {
    let mut end = End::new(&options.plan, true)?;
    let mut peer = start_peer(options, arguments)?;
    if !pin(1) {
        peer.kill()?;
        eprintln!("iceoryx2-pingpong: needs two CPUs");
        return Ok(NOTHING_TO_RUN_ON);
    }
    let mut said = BufReader::new(peer.stdout.take().ok_or("no pipe")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    if line != "ready\n" {
        return Err("the peer did not start".into());
    }
    if options.plan.in_flight > 0 {
        return near_of_stream(options, &mut end, said, peer);
    }
    let mut laps = Vec::with_capacity(options.plan.iterations as usize);
    let (mut began, mut last) = (Instant::now(), 0);
    end.play(|step| {
        let now = ticks();
        if step + 1 == CHECKED + WARM_UP {
            began = Instant::now();
        } else if step >= CHECKED + WARM_UP {
            laps.push(now - last);
        }
        last = now;
    })?;
    let seconds = began.elapsed().as_secs_f64();
    line.clear();
    said.read_line(&mut line)?;
    let theirs: u64 = line.trim().strip_prefix("wrong ").ok_or("the peer ended early")?.parse()?;
    peer.wait()?;
    if end.wrong + theirs != 0 {
        eprintln!("iceoryx2-pingpong: payload did not verify: {} wrong words", end.wrong + theirs);
        return Ok(CORRUPT);
    }
    report(options, laps, seconds);
    Ok(0)
}

fn near_of_stream(
    options: &Options,
    end: &mut End,
    mut said: impl BufRead,
    mut peer: std::process::Child,
) -> Result<u8, Failure> {
    let mut began = 0.0;
    end.stream(|step| {
        if step + 1 == CHECKED + WARM_UP {
            began = cpu_seconds();
        }
    })?;
    let ours = cpu_seconds() - began;
    let (mut wrong, mut figures) = (String::new(), String::new());
    said.read_line(&mut wrong)?;
    said.read_line(&mut figures)?;
    peer.wait()?;
    let wrong: u64 = wrong.trim().strip_prefix("wrong ").ok_or("the peer ended early")?.parse()?;
    if wrong != 0 {
        eprintln!("iceoryx2-pingpong: payload did not verify: {wrong} wrong words");
        return Ok(CORRUPT);
    }
    let (seconds, theirs) = figures.trim().split_once(' ').ok_or("the peer ended early")?;
    let (seconds, theirs): (f64, f64) = (seconds.parse()?, theirs.parse()?);
    let count = options.plan.iterations as f64;
    println!(
        "{{\"name\":\"iceoryx2\",\"mode\":\"{} in flight, {}\",\"size_bytes\":{},\"iterations\":{count},\"messages_per_second\":{:.0},\"cpu_ns_per_message\":{:.1},\"verified\":true}}",
        options.plan.in_flight,
        options.mode[1],
        options.plan.size,
        count / seconds,
        (ours + theirs) * 1e9 / count
    );
    Ok(0)
}

fn report(options: &Options, mut laps: Vec<u64>, seconds: f64) {
    let scale = seconds * 1e9 / laps.iter().sum::<u64>() as f64 / 2.0;
    laps.sort_unstable();
    let ns = |at: usize| laps[at] as f64 * scale;
    let count = laps.len();
    println!(
        "{{\"name\":\"iceoryx2\",\"mode\":\"{}, {}\",\"size_bytes\":{},\"iterations\":{count},\"one_way_ns\":{{\"min\":{:.1},\"p50\":{:.1},\"max\":{:.1}}},\"mean_one_way_ns\":{:.1},\"verified\":true}}",
        options.mode[0],
        options.mode[1],
        options.plan.size,
        ns(0),
        ns(count / 2),
        ns(count - 1),
        seconds * 1e9 / count as f64 / 2.0
    );
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match parse(&arguments) {
        Ok(options) => options,
        Err(what) => {
            eprintln!("iceoryx2-pingpong: {what} (for example: --size 64 --iterations 1000)");
            return ExitCode::from(USAGE);
        }
    };
    // SAFETY: plain system call; both processes are ended after so long, whatever they wait for.
    unsafe { libc::alarm(options.limit_seconds) };
    iceoryx2::prelude::set_log_level(iceoryx2::prelude::LogLevel::Error);
    let done = if options.far { far(&options) } else { near(&options, &arguments) };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(what) => {
            eprintln!("iceoryx2-pingpong: {what}");
            ExitCode::from(FAILED)
        }
    }
}
