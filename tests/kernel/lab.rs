//! One agent, one daemon, one network namespace, all made for one test and taken away after it.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_abi::{AgentState, Event, Listener, MODE_ISOLATED, MODE_RUN, Origin, Reason, Settings};
use agent_tests::cgroup::{Cgroup, enter};
use agent_tests::netns::Netns;
use agent_tests::probe::Probe;
use interlock::kernel::{Events, Kernel, Options, cgroup, netns, syn};
use tokio::runtime::Runtime;

pub(crate) const AGENT: u32 = 7;

/// Everything a test needs. The fields drop in the order in which they undo each other.
pub(crate) struct Lab {
    pub(crate) kernel: Kernel,
    pub(crate) listener4: TcpListener,
    pub(crate) listener6: TcpListener,
    pub(crate) space: netns::Netns,
    pub(crate) runtime: Runtime,
    events: Option<Events>,
    pins: Pins,
    namespace: Netns,
    agent_dir: PathBuf,
    branch: Cgroup,
    home: Home,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// Holds an agent in a namespace where the daemon listens.
    pub(crate) fn new() -> Lab {
        let alone = alone();
        let home = Home::enter();
        let root = cgroup::root().expect("cgroup v2 is mounted");
        let branch = Cgroup::create(&root);
        let agent_dir = branch.child("agent");
        let pins = Pins::new(&branch);
        let kernel = Kernel::attach(&options(&pins, &branch)).expect("the kernel side attaches");
        let namespace = Netns::create();
        let space = netns::Netns::open(&namespace.path()).expect("the namespace opens");
        let bind = |address| {
            let listener = space.within(|| TcpListener::bind((address, 0))).expect("setns").expect("bind");
            syn::keep(listener.as_fd()).expect("SYNs are kept");
            listener
        };
        let listener4 = bind(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listener6 = bind(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST));
        let lab = Lab {
            kernel,
            listener4,
            listener6,
            space,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
            events: None,
            pins,
            namespace,
            agent_dir,
            branch,
            home,
            _alone: alone,
        };
        lab.kernel.set_listener(lab.space.cookie().expect("a cookie"), lab.ports()).expect("set_listener");
        lab.set_mode(MODE_RUN);
        lab.hold();
        lab
    }

    pub(crate) fn hold(&self) {
        let id = cgroup::id(&self.agent_dir).expect("the cgroup is there");
        self.kernel.hold(&self.agent_dir, id, AGENT).expect("hold");
    }

    pub(crate) fn let_go(&self) {
        self.kernel.let_go(self.agent_id()).expect("let_go");
    }

    pub(crate) fn agent_id(&self) -> u64 {
        cgroup::id(&self.agent_dir).expect("the cgroup is there")
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        self.kernel.set_state(AGENT, AgentState { mode, errno: 0 }).expect("set_state");
    }

    pub(crate) fn isolate(&self) {
        self.set_mode(MODE_ISOLATED);
    }

    /// Cuts the agent's live sockets.
    pub(crate) fn destroy(&self) -> interlock::kernel::sock_diag::Destroyed {
        let cgroups = HashSet::from([self.agent_id()]);
        let agents = HashSet::from([AGENT]);
        self.space.within(|| self.kernel.destroy(&cgroups, &agents)).expect("setns").expect("destroy")
    }

    /// A process of the agent, in the namespace where the daemon listens.
    pub(crate) fn agent(&self) -> Probe {
        self.probe(&self.agent_dir)
    }

    /// A process beside the agent, below the same hooks.
    pub(crate) fn stranger(&self) -> Probe {
        self.probe(&self.branch.child("outside"))
    }

    pub(crate) fn probe(&self, dir: &Path) -> Probe {
        let mut probe = bare_probe();
        enter(dir, probe.pid());
        probe.must(&format!("netns {}", self.namespace.path().display()));
        probe
    }

    pub(crate) fn agent_dir(&self) -> &Path {
        &self.agent_dir
    }

    pub(crate) fn branch(&self) -> &Path {
        self.branch.dir()
    }

    /// The daemon's own cgroup.
    pub(crate) fn home(&self) -> &Path {
        self.home.cgroup.dir()
    }

    pub(crate) fn pins(&self) -> &Path {
        &self.pins.0
    }

    pub(crate) fn options(&self) -> Options {
        options(&self.pins, &self.branch)
    }

    pub(crate) fn ports(&self) -> Listener {
        let port = |listener: &TcpListener| u32::from(listener.local_addr().expect("it is bound").port());
        Listener { port4: port(&self.listener4), port6: port(&self.listener6) }
    }

    /// The next connection at the daemon's IPv4 listener, and where it wanted to go.
    #[track_caller]
    pub(crate) fn accept4(&self) -> (TcpStream, Option<Origin>) {
        self.accept(&self.listener4)
    }

    #[track_caller]
    pub(crate) fn accept6(&self) -> (TcpStream, Option<Origin>) {
        self.accept(&self.listener6)
    }

    #[track_caller]
    fn accept(&self, listener: &TcpListener) -> (TcpStream, Option<Origin>) {
        listener.set_nonblocking(true).expect("it is a socket");
        let stream = until("a connection at the daemon", || listener.accept().ok()).0;
        let origin = self.kernel.take_origin(stream.as_fd());
        (stream, origin)
    }

    /// A socket of the given numbers connected by the agent, as a handle of the probe.
    #[track_caller]
    pub(crate) fn connected(&self, agent: &mut Probe, to: &str) -> String {
        let address: SocketAddr = to.parse().expect("an address");
        let handle = agent.must(if address.is_ipv4() { "socket 2 1 0" } else { "socket 10 1 0" });
        agent.must(&format!("connect {handle} {to}"));
        handle
    }

    /// Opens the event stream; what happens from here on is seen by [`Lab::event`].
    pub(crate) fn watch(&mut self) {
        let _entered = self.runtime.enter();
        self.events = Some(self.kernel.events().expect("events"));
    }

    /// The next refusal.
    #[track_caller]
    pub(crate) fn event(&mut self) -> (Reason, Event) {
        let events = self.events.as_mut().expect("watch() was called");
        let next = async { tokio::time::timeout(Duration::from_secs(5), events.next()).await };
        let event = self.runtime.block_on(next).expect("an event in time").expect("the ring reads");
        (Reason::from_number(event.reason).expect("a known reason"), event)
    }

    #[track_caller]
    pub(crate) fn flows_are_empty(&self) {
        until("FLOWS to be empty", || self.kernel.flows().expect("flows").is_empty().then_some(()));
    }
}

/// A probe where the test runs: no cgroup, no namespace of its own.
pub(crate) fn bare_probe() -> Probe {
    Probe::start(Path::new(env!("CARGO_BIN_EXE_agent-probe")))
}

/// Waits for a condition, with a deadline.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn options(pins: &Pins, branch: &Cgroup) -> Options {
    Options { pin_dir: pins.0.clone(), attach: vec![branch.dir().to_owned()], settings: Settings::default() }
}

/// One lab at a time: moving the test process between cgroups is for all its threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The daemon's own cgroup: this process is the daemon while a lab is open.
struct Home {
    before: PathBuf,
    cgroup: Cgroup,
}

impl Home {
    fn enter() -> Home {
        let before = cgroup::dir_of(std::process::id()).expect("we are in a cgroup");
        let home = Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"));
        enter(home.dir(), std::process::id());
        Home { before, cgroup: home }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        enter(&self.before, std::process::id());
    }
}

/// The pin folder of a test.
struct Pins(PathBuf);

impl Pins {
    fn new(branch: &Cgroup) -> Pins {
        Pins(Path::new("/sys/fs/bpf").join(branch.dir().file_name().expect("it has a name")))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        Kernel::detach_all(&self.0).expect("the pins go");
    }
}
