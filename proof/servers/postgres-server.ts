// A PostgreSQL server of a test's, a bench's or a rig's own: found or installed, started on a free port in a temporary directory as an
// unprivileged user, and stopped by the process that started it. Nothing here knows Outlive.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { aptInstall, mayAptInstall } from "./apt-install.ts";
import { freePort } from "./free-port.ts";

export interface ServerOptions {
  /** Off is faster and loses data only if the machine dies: fine for the shared server, never for tests about crashes. */
  readonly fsync: boolean;
  /** With a password, the superuser must give it (scram); without, everybody on this host is trusted. */
  readonly password?: string;
  /** Whether Debian's package may be installed if there is none. Default true; a demo installs nothing. */
  readonly mayInstall?: boolean;
  /** Where its folder is made. Default: the system's temporary one. */
  readonly parent?: string;
  /** Further settings, as in postgresql.conf. */
  readonly settings?: Readonly<Record<string, string>>;
}

export const SUPERUSER = "outlive_test";

export class PostgresServer {
  readonly folder: string;
  readonly port: number;
  readonly #options: ServerOptions;
  readonly #bin: string;
  readonly #owner: Owner;
  #process: ChildProcess | undefined;
  /** Backends are group leaders of their own: the list is kept while they are frozen. */
  #frozen: number[] = [];

  private constructor(folder: string, port: number, bin: string, owner: Owner, options: ServerOptions) {
    this.folder = folder;
    this.port = port;
    this.#bin = bin;
    this.#owner = owner;
    this.#options = options;
  }

  static async create(options: ServerOptions): Promise<PostgresServer> {
    const bin = binaries(options.mayInstall ?? true);
    const owner = unprivilegedOwner();
    const folder = mkdtempSync(join(options.parent ?? tmpdir(), "outlive-postgres-"));
    if (owner.uid !== undefined) chownSync(folder, owner.uid, owner.gid!);
    const server = new PostgresServer(folder, await freePort(), bin, owner, options);
    try {
      server.#initialise();
      await server.start();
    } catch (thrown) {
      await server.destroy();
      throw thrown;
    }
    return server;
  }

  url(database = "postgres", user = SUPERUSER, password = this.#options.password): string {
    const secret = password === undefined ? "" : `:${encodeURIComponent(password)}`;
    return `postgres://${user}${secret}@127.0.0.1:${this.port}/${database}`;
  }

  /** Where one of its own programs is: `pg_dump`, `psql`. */
  program(name: string): string {
    return join(this.#bin, name);
  }

  /** Resolves when it accepts connections. */
  async start(): Promise<void> {
    const { fsync, settings = {} } = this.#options;
    const all = {
      listen_addresses: "127.0.0.1",
      unix_socket_directories: "",
      max_connections: "200",
      fsync: fsync ? "on" : "off",
      ...settings,
    };
    const flags = Object.entries(all).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
    // A group of its own: Ctrl-C in a terminal must not reach it before the tests have ended.
    const child = spawn(join(this.#bin, "postgres"), ["-D", this.#data, "-p", String(this.port), ...flags], {
      ...this.#owner,
      detached: true,
      stdio: ["ignore", "ignore", "pipe"],
      env: { PATH: process.env["PATH"], LC_ALL: "C" },
    });
    this.#process = child;
    await accepting(child);
    // It keeps no program alive: one that ends without stopping it still ends.
    child.unref();
    (child.stderr as unknown as { unref(): void }).unref();
  }

  /** An orderly stop: sessions are ended, everything is on disk. */
  async stop(): Promise<void> {
    this.thaw();
    await this.#end("SIGINT");
  }

  /** As if the machine had lost it: every process at once by SIGKILL. */
  async kill(): Promise<void> {
    // The first process stands still meanwhile: it would start others in the place of those that die.
    if (this.#running) signal(this.#process!.pid!, "SIGSTOP");
    const backends = this.#backends();
    for (const pid of backends) signal(pid, "SIGKILL");
    this.#frozen = [];
    await this.#end("SIGKILL");
    // On a busy machine they die a while after it, and the next start refuses a folder whose memory is still in use.
    while (backends.some((pid) => existsSync(`/proc/${pid}`))) await pause(10);
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  /** Stops every process of it in its tracks, connections stay open. */
  freeze(): void {
    const postmaster = this.#process!.pid!;
    signal(postmaster, "SIGSTOP");
    this.#frozen = [postmaster, ...this.#backends()];
    for (const pid of this.#frozen) signal(pid, "SIGSTOP");
  }

  thaw(): void {
    for (const pid of this.#frozen) signal(pid, "SIGCONT");
    this.#frozen = [];
  }

  /** Everything away, also what is left of a start that failed. */
  async destroy(): Promise<void> {
    if (this.#running) await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** As `destroy`, from the handler of an exit, where nothing can be awaited. */
  destroyNow(): void {
    if (this.#running) {
      const postmaster = this.#process!.pid!;
      signal(postmaster, "SIGSTOP");
      for (const pid of [...this.#backends(), postmaster]) signal(pid, "SIGKILL");
    }
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
  }

  /** Stops it, but keeps what it holds; from the handler of an exit. Returns how it is started again. */
  leaveNow(): string {
    this.thaw();
    if (this.#running) signal(this.#process!.pid!, "SIGINT");
    return `${join(this.#bin, "pg_ctl")} -D ${this.#data} -o "-p ${this.port} -c unix_socket_directories=" start`;
  }

  /** Whether its first process lives; it may still be recovering. */
  get isRunning(): boolean {
    return this.#running;
  }

  get #data(): string {
    return join(this.folder, "data");
  }

  get #secret(): string {
    return join(this.folder, "password");
  }

  get #running(): boolean {
    return this.#process !== undefined && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  #initialise(): void {
    const { password } = this.#options;
    const auth = password === undefined ? ["-A", "trust"] : ["-A", "scram-sha-256", `--pwfile=${this.#secret}`];
    if (password !== undefined) {
      writeFileSync(this.#secret, password, { mode: 0o600 });
      if (this.#owner.uid !== undefined) chownSync(this.#secret, this.#owner.uid, this.#owner.gid!);
    }
    execFileSync(
      join(this.#bin, "initdb"),
      ["-D", this.#data, "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync", ...auth],
      { ...this.#owner, stdio: ["ignore", "ignore", "pipe"], env: { PATH: process.env["PATH"] } },
    );
  }

  async #end(by: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    if (!child || !this.#running) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.ref();
    child.kill(by);
    await ended;
  }

  #backends(): number[] {
    const parent = this.#process?.pid;
    if (parent === undefined) return [];
    return readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .map(Number)
      .filter((pid) => parentOf(pid) === parent);
  }
}

interface Owner {
  readonly uid?: number;
  readonly gid?: number;
}

/** PostgreSQL refuses to run as root: then it runs as the machine's `postgres`, or as `nobody`. */
function unprivilegedOwner(): Owner {
  if (process.getuid?.() !== 0) return {};
  const accounts = readFileSync("/etc/passwd", "utf8").split("\n");
  for (const name of ["postgres", "nobody"]) {
    const fields = accounts.find((line) => line.startsWith(`${name}:`))?.split(":");
    if (fields) return { uid: Number(fields[2]), gid: Number(fields[3]) };
  }
  throw new Error(
    "PostgreSQL does not run as root, and this machine has neither a user `postgres` nor a user `nobody`.",
  );
}

/** The folder with `initdb` and `postgres`; Debian's package is installed if there is none and we may. */
function binaries(mayInstall: boolean): string {
  const found = installedBinaries();
  if (found) return found;
  if (mayInstall && mayAptInstall()) {
    try {
      aptInstall("postgresql");
    } catch (thrown) {
      throw new Error(noBinaries(), { cause: thrown });
    }
  }
  const installed = installedBinaries();
  if (installed) return installed;
  throw new Error(noBinaries());
}

/** What to do when there are none. `given`: a server that the tests may use, which does not help a test that kills and restarts one. */
export function noBinaries(given = process.env["OUTLIVE_TEST_POSTGRES_URL"]): string {
  return given
    ? `This needs a PostgreSQL server of its own, which it kills, freezes or restarts; the one of OUTLIVE_TEST_POSTGRES_URL is left in peace. ${INSTALL}.`
    : `This needs PostgreSQL and found none. ${INSTALL}, or name a server: OUTLIVE_TEST_POSTGRES_URL for tests that only need databases on it, \`--store\` for the demo.`;
}

const INSTALL = "Install its programs on this machine (Debian: apt-get install postgresql)";

function installedBinaries(): string | undefined {
  const candidates: string[] = [];
  try {
    candidates.push(execFileSync("pg_config", ["--bindir"], { encoding: "utf8", stdio: "pipe" }).trim());
  } catch {
    // It comes with the development package only.
  }
  const debian = "/usr/lib/postgresql";
  if (existsSync(debian)) {
    const versions = readdirSync(debian).toSorted((a, b) => Number(b) - Number(a));
    candidates.push(...versions.map((version) => join(debian, version, "bin")));
  }
  candidates.push(...(process.env["PATH"] ?? "").split(":"));
  return candidates.find((folder) => existsSync(join(folder, "initdb")) && existsSync(join(folder, "postgres")));
}

/** The server says itself when it is ready; what it said before is the reason if it ends instead. */
function accepting(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = "";
    child.stderr!.setEncoding("utf8");
    child.stderr!.on("data", (text: string) => {
      said = (said + text).slice(-10_000);
      if (said.includes("ready to accept connections")) resolve();
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`PostgreSQL ended with ${code} instead of starting:\n${said}`)));
  });
}

function parentOf(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
  } catch {
    return undefined;
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended meanwhile.
  }
}
