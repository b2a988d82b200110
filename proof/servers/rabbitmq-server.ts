// A RabbitMQ broker of a test's, a bench's or a rig's own: found or installed, started on free ports in a temporary folder, and stopped by the
// process that started it. Nothing here knows Outlive. Debian's wrapper /usr/sbin/rabbitmq-server changes the user and drops the environment, so
// the program behind it is called.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { aptInstall, mayAptInstall } from "./apt-install.ts";
import { freePort } from "./free-port.ts";

const PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const MISSING =
  "This needs RabbitMQ and found none. Install its server on this machine (Debian: apt-get install rabbitmq-server), or name one by OUTLIVE_TEST_RABBITMQ_URL for tests that only need queues on it.";
/** A start took 6 to 16 s on a busy machine of two cores. */
const START_MS = 120_000;

export interface RabbitmqOptions {
  /** Whether Debian's package may be installed if there is none. Default true. */
  readonly mayInstall?: boolean;
  /** Further lines of rabbitmq.conf. */
  readonly settings?: Readonly<Record<string, string>>;
}

export class RabbitmqServer {
  readonly folder: string;
  readonly port: number;
  readonly #ports: { readonly dist: number; readonly epmd: number };
  readonly #options: RabbitmqOptions;
  readonly #user: { readonly uid?: number; readonly gid?: number };
  #epmd: ChildProcess | undefined;
  #process: ChildProcess | undefined;

  private constructor(folder: string, ports: { port: number; dist: number; epmd: number }, options: RabbitmqOptions) {
    this.folder = folder;
    this.port = ports.port;
    this.#ports = ports;
    this.#options = options;
    // As root the server runs as the package's own user, who owns the folder.
    this.#user = process.getuid?.() === 0 ? { uid: idOf("-u"), gid: idOf("-g") } : {};
  }

  static async create(options: RabbitmqOptions = {}): Promise<RabbitmqServer> {
    assertInstalled(options.mayInstall ?? true);
    const folder = mkdtempSync(join(tmpdir(), "outlive-rabbitmq-"));
    const ports = { port: await freePort(), dist: await freePort(), epmd: await freePort() };
    const server = new RabbitmqServer(folder, ports, options);
    try {
      server.#prepare();
      await server.start();
    } catch (thrown) {
      await server.destroy();
      throw thrown;
    }
    return server;
  }

  /** `user` and `password` for one that the test made; `vhost` likewise. */
  url({ user = "guest", password = "guest", vhost = "" } = {}): string {
    return `amqp://${user}:${password}@127.0.0.1:${this.port}${vhost === "" ? "" : `/${encodeURIComponent(vhost)}`}`;
  }

  #prepare(): void {
    const settings = {
      "listeners.tcp.1": `127.0.0.1:${this.port}`,
      "log.console": "true",
      "log.console.level": "info",
      "log.file": "false",
      "disk_free_limit.absolute": "50MB",
      "vm_memory_high_watermark.absolute": "1GB",
      "raft.wal_max_size_bytes": "134217728",
      ...this.#options.settings,
    };
    const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}\n`);
    writeFileSync(join(this.folder, "rabbitmq.conf"), lines.join(""));
    writeFileSync(join(this.folder, "env.conf"), "");
    writeFileSync(join(this.folder, "enabled_plugins"), "[].\n");
    for (const name of ["data", "log"]) mkdirSync(join(this.folder, name));
    const { uid, gid } = this.#user;
    if (uid === undefined || gid === undefined) return;
    for (const name of ["", "data", "log", "rabbitmq.conf", "env.conf", "enabled_plugins"])
      chownSync(join(this.folder, name), uid, gid);
  }

  get #env(): NodeJS.ProcessEnv {
    const { dist, epmd } = this.#ports;
    return {
      PATH: process.env["PATH"],
      LC_ALL: "C.UTF-8",
      HOME: this.folder,
      RABBITMQ_NODENAME: `outlive-${this.port}@localhost`,
      RABBITMQ_NODE_IP_ADDRESS: "127.0.0.1",
      // The default is the port + 20000, which passes the last port for those that the kernel hands out.
      RABBITMQ_DIST_PORT: String(dist),
      ERL_EPMD_PORT: String(epmd),
      ERL_EPMD_ADDRESS: "127.0.0.1",
      RABBITMQ_CONF_ENV_FILE: join(this.folder, "env.conf"),
      RABBITMQ_CONFIG_FILE: join(this.folder, "rabbitmq.conf"),
      RABBITMQ_ENABLED_PLUGINS_FILE: join(this.folder, "enabled_plugins"),
      RABBITMQ_MNESIA_BASE: join(this.folder, "data"),
      RABBITMQ_LOG_BASE: join(this.folder, "log"),
      RABBITMQ_LOGS: "-",
      RABBITMQ_PID_FILE: join(this.folder, "pid"),
      RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: "-setcookie outlive -kernel inet_dist_use_interface {127,0,0,1}",
      RABBITMQ_CTL_ERL_ARGS: "-setcookie outlive",
    };
  }

  /** Resolves when it accepts connections, with all queues it had. */
  async start(): Promise<void> {
    const env = this.#env;
    // In the foreground: erl would start a daemon that outlives every process of this run.
    if (this.#epmd === undefined || this.#epmd.exitCode !== null || this.#epmd.signalCode !== null) {
      const args = ["-port", String(this.#ports.epmd), "-address", "127.0.0.1"];
      this.#epmd = spawn("epmd", args, { ...this.#user, env, detached: true, stdio: "ignore" });
      this.#epmd.unref();
    }
    // A group of its own: the shell and the virtual machine die together.
    const child = spawn(PROGRAM, [], {
      ...this.#user,
      cwd: this.folder,
      env,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#process = child;
    writeFileSync(join(this.folder, "pids"), `${this.#epmd.pid} ${child.pid}\n`);
    await started(child);
    child.unref();
    for (const stream of [child.stdout, child.stderr]) (stream as unknown as { unref(): void } | null)?.unref();
  }

  get isRunning(): boolean {
    return this.#process !== undefined && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  /** kill -9. Resolves when nothing of it runs any more. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** An orderly stop. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
  }

  /** Stops it in its tracks, connections stay open. */
  freeze(): void {
    this.#signal("SIGSTOP");
  }

  thaw(): void {
    this.#signal("SIGCONT");
  }

  /** One command of rabbitmqctl, which takes about a second. Returns what it prints. */
  control(...args: readonly string[]): string {
    return execFileSync("/usr/lib/rabbitmq/bin/rabbitmqctl", ["-q", "-n", `outlive-${this.port}@localhost`, ...args], {
      ...this.#user,
      env: this.#env,
      encoding: "utf8",
    });
  }

  /** Everything away, also what is left of a start that failed. */
  async destroy(): Promise<void> {
    await this.#end("SIGKILL");
    this.destroyNow();
  }

  /** As `destroy`, from the handler of an exit, where nothing can be awaited. */
  destroyNow(): void {
    this.#signal("SIGKILL");
    this.#epmd?.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  }

  #signal(name: NodeJS.Signals): void {
    const { pid } = this.#process ?? {};
    if (pid === undefined) return;
    try {
      process.kill(-pid, name);
    } catch {
      // It has ended.
    }
  }

  async #end(by: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    if (!child || !this.isRunning) return;
    const members = groupOf(child.pid!);
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.ref();
    if (by === "SIGKILL") this.#signal(by);
    else child.kill(by);
    await ended;
    // The shell has ended; its virtual machine may take a moment longer, and still has the port then.
    while (members.some(runs)) await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function idOf(flag: "-u" | "-g"): number {
  return Number(execFileSync("id", [flag, "rabbitmq"], { encoding: "utf8" }));
}

/** The processes of a group that run now. */
function groupOf(group: number): number[] {
  const text = execFileSync("ps", ["-eo", "pid=,pgid="], { encoding: "utf8" });
  return text
    .split("\n")
    .map((line) => line.trim().split(/\s+/).map(Number))
    .filter(([, pgid]) => pgid === group)
    .map(([pid]) => pid!);
}

/** A zombie only waits for its parent. */
function runs(pid: number): boolean {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

function assertInstalled(mayInstall: boolean): void {
  if (existsSync(PROGRAM)) return;
  if (mayInstall && mayAptInstall()) {
    try {
      aptInstall("rabbitmq-server");
    } catch (thrown) {
      throw new Error(MISSING, { cause: thrown });
    }
  }
  if (!existsSync(PROGRAM)) throw new Error(MISSING);
}

/** The server says itself when it is ready; what it said before is the reason if it ends instead. */
function started(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = "";
    const timer = setTimeout(
      () => reject(new Error(`RabbitMQ did not start within ${START_MS} ms:\n${said}`)),
      START_MS,
    );
    const hear = (text: string): void => {
      said = (said + text).slice(-10_000);
      if (!said.includes("Server startup complete")) return;
      clearTimeout(timer);
      resolve();
    };
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.setEncoding("utf8");
      stream.on("data", hear);
    }
    child.once("error", reject);
    child.once("exit", (code, signal) => {
      clearTimeout(timer);
      reject(new Error(`RabbitMQ ended with ${code ?? signal} instead of starting:\n${said}`));
    });
  });
}
