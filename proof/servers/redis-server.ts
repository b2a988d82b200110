// A Redis server of a test's, a bench's or a rig's own: found or installed, started on a free port in a temporary directory, and stopped by
// the process that started it. Nothing here knows Outlive.
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { isAbsolute, join } from "node:path";
import { aptInstall, mayAptInstall } from "./apt-install.ts";
import { freePort } from "./free-port.ts";

export interface RedisOptions {
  /** Whether writes go to an append-only file, and when that is flushed. Default "no": what is killed loses everything. */
  readonly fsync?: "no-file" | "everysec" | "always";
  /** As in redis.conf: "64mb". Default: no limit. */
  readonly maxmemory?: string;
  /** Lines of an ACL file: "user app on >secret +@all -@dangerous ~o:* &o:*". Default: everybody may do everything. */
  readonly acl?: readonly string[];
  /** Whether Debian's package may be installed if there is none. Default true; a demo installs nothing. */
  readonly mayInstall?: boolean;
  /** Where its folder is made. Default: the system's temporary one. */
  readonly parent?: string;
  /** A sentinel that monitors the server on this port under this name, and fails over alone. Default: a server. */
  readonly sentinelOf?: { readonly name: string; readonly port: number };
  /** Further settings, as in redis.conf. */
  readonly settings?: Readonly<Record<string, string>>;
}

export class RedisServer {
  readonly folder: string;
  readonly port: number;
  readonly #options: RedisOptions;
  readonly #program: string;
  #process: ChildProcess | undefined;

  private constructor(folder: string, port: number, program: string, options: RedisOptions) {
    this.folder = folder;
    this.port = port;
    this.#program = program;
    this.#options = options;
  }

  static async create(options: RedisOptions = {}): Promise<RedisServer> {
    const program = programFor(options.mayInstall ?? true);
    const folder = mkdtempSync(join(options.parent ?? tmpdir(), "outlive-redis-"));
    const server = new RedisServer(folder, await freePort(), program, options);
    try {
      await server.start();
    } catch (thrown) {
      await server.destroy();
      throw thrown;
    }
    return server;
  }

  url(user?: string, password?: string): string {
    const who = user === undefined ? "" : `${user}:${encodeURIComponent(password ?? "")}@`;
    return `redis://${who}127.0.0.1:${this.port}`;
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Resolves when it accepts connections: its data are loaded. */
  async start(): Promise<void> {
    const { fsync = "no-file", maxmemory, acl, settings = {}, sentinelOf } = this.#options;
    const file = join(this.folder, "redis.conf");
    const all: Record<string, string> = {
      bind: "127.0.0.1",
      port: String(this.port),
      dir: this.folder,
      ...(sentinelOf && {
        "sentinel monitor": `${sentinelOf.name} 127.0.0.1 ${sentinelOf.port} 1`,
        "sentinel down-after-milliseconds": `${sentinelOf.name} 500`,
        "sentinel failover-timeout": `${sentinelOf.name} 3000`,
      }),
      ...(!sentinelOf && { save: '""', appendonly: fsync === "no-file" ? "no" : "yes" }),
      ...(fsync !== "no-file" && { appendfsync: fsync }),
      ...(maxmemory !== undefined && { maxmemory, "maxmemory-policy": "noeviction" }),
      ...settings,
    };
    if (acl) {
      all["aclfile"] = join(this.folder, "users.acl");
      writeFileSync(all["aclfile"], `${acl.join("\n")}\n`);
    }
    // A sentinel writes what it has learned into its file.
    if (sentinelOf === undefined || !existsSync(file))
      writeFileSync(
        file,
        Object.entries(all)
          .map(([name, value]) => `${name} ${value}\n`)
          .join(""),
      );
    // A group of its own: Ctrl-C in a terminal must not reach it before the tests have ended.
    const child = spawn(this.#program, [file, ...(sentinelOf ? ["--sentinel"] : [])], {
      detached: true,
      stdio: ["ignore", "pipe", "ignore"],
    });
    this.#process = child;
    await accepting(child);
    child.unref();
    (child.stdout as unknown as { unref(): void }).unref();
  }

  /** An orderly stop. */
  async stop(): Promise<void> {
    this.thaw();
    await this.#end("SIGTERM");
  }

  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  /** Stops it in its tracks, connections stay open. */
  freeze(): void {
    this.#process?.kill("SIGSTOP");
  }

  thaw(): void {
    if (this.isRunning) this.#process?.kill("SIGCONT");
  }

  get isRunning(): boolean {
    return this.#process !== undefined && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  /** Everything away, also what is left of a start that failed. */
  async destroy(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** As `destroy`, from the handler of an exit, where nothing can be awaited. */
  destroyNow(): void {
    if (this.isRunning) this.#process!.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
  }

  async #end(by: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    if (!child || !this.isRunning) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.ref();
    child.kill(by);
    await ended;
  }
}

/**
 * `redis-server`, or the program that OUTLIVE_TEST_REDIS_SERVER names, such as `valkey-server` or the path of another version. Debian's package is
 * installed if nothing is named, there is none, and we may.
 */
function programFor(mayInstall: boolean): string {
  const named = process.env["OUTLIVE_TEST_REDIS_SERVER"];
  if (named) {
    const program = onPath(named);
    if (program) return program;
    throw new Error(`OUTLIVE_TEST_REDIS_SERVER is ${named}, and there is no such program.`);
  }
  const found = installed();
  if (found) return found;
  if (mayInstall && mayAptInstall()) {
    try {
      aptInstall("redis-server");
    } catch (thrown) {
      throw new Error(MISSING, { cause: thrown });
    }
  }
  const now = installed();
  if (now) return now;
  throw new Error(MISSING);
}

const MISSING =
  "This needs Redis and found none. Install its server on this machine (Debian: apt-get install redis-server), or name one by OUTLIVE_TEST_REDIS_URL for tests that only need keys on it.";

function installed(): string | undefined {
  return onPath("redis-server") ?? onPath("valkey-server");
}

function onPath(name: string): string | undefined {
  const folders = isAbsolute(name) ? ["/"] : (process.env["PATH"] ?? "").split(":");
  return folders.map((folder) => join(folder, name)).find((file) => existsSync(file));
}

/** The server says itself when it is ready; what it said before is the reason if it ends instead. */
function accepting(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = "";
    child.stdout!.setEncoding("utf8");
    child.stdout!.on("data", (text: string) => {
      said = (said + text).slice(-10_000);
      if (/ready to accept connections|Sentinel ID is/i.test(said)) resolve();
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`Redis ended with ${code} instead of starting:\n${said}`)));
  });
}
