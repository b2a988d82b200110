// Debian's pgbouncer in front of a server, on a free port of the loopback, as an unprivileged user. Installed if it is missing and we may.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chownSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { aptInstall } from "../../servers/apt-install.ts";
import { freePort } from "../../servers/free-port.ts";
import type { Fault } from "../processes/fault-schedule.ts";
import { HELD_BACK_MS } from "./proxy.ts";

const BINARY = "/usr/sbin/pgbouncer";
const SETPRIV = "/usr/bin/setpriv";
/** Of a busy machine. */
const LISTENS_WITHIN_MS = 30_000;

export type PoolMode = "transaction" | "session";

export class PgBouncer {
  /** The same database through the pooler. */
  readonly url: string;
  readonly #folder: string;
  readonly #port: number;
  #process: ChildProcess | undefined;

  private constructor(folder: string, port: number, url: string) {
    this.#folder = folder;
    this.#port = port;
    this.url = url;
  }

  static async before(url: string, mode: PoolMode): Promise<PgBouncer> {
    if (!existsSync(BINARY)) install();
    const port = await freePort();
    const through = new URL(url);
    const { hostname, port: serverPort, username } = through;
    through.host = `127.0.0.1:${port}`;
    const folder = mkdtempSync(join(tmpdir(), "outlive-pgbouncer-"));
    const bouncer = new PgBouncer(folder, port, through.href);
    writeFileSync(
      bouncer.#config,
      `[databases]
* = user=${username} host=${hostname} port=${serverPort}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
default_pool_size = 50
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
`,
    );
    const { uid, gid } = owner();
    if (uid !== undefined) for (const path of [folder, bouncer.#config]) chownSync(path, uid, gid!);
    try {
      await bouncer.start();
    } catch (thrown) {
      bouncer.destroyNow();
      throw thrown;
    }
    return bouncer;
  }

  /** Resolves when it accepts connections. */
  async start(): Promise<void> {
    const command = [BINARY, this.#config];
    // Where it can, the kernel ends it with this process, however that ends.
    if (existsSync(SETPRIV)) command.unshift(SETPRIV, "--pdeathsig", "KILL");
    this.#process = spawn(command[0]!, command.slice(1), { ...owner(), stdio: "ignore" });
    this.#process.unref();
    const deadline = performance.now() + LISTENS_WITHIN_MS;
    while (!(await accepts(this.#port))) {
      if (performance.now() > deadline) throw new Error(`pgbouncer does not listen on port ${this.#port}.`);
      await pause(20);
    }
  }

  async kill(): Promise<void> {
    const ended = once(this.#process!, "exit");
    this.#process!.kill("SIGKILL");
    await ended;
  }

  /** Safe to call at any time, also while the process exits. */
  destroyNow(): void {
    this.#process?.kill("SIGKILL");
    rmSync(this.#folder, { recursive: true, force: true });
  }

  get fault(): Fault {
    return {
      key: "killPooler",
      name: "kill the pooler with SIGKILL and start it again",
      aftermathMs: HELD_BACK_MS,
      strike: async (chance, signal) => {
        await this.kill();
        await pause(chance.whole(0, 1_000), undefined, { signal }).catch(() => {});
        await this.start();
      },
    };
  }

  get #config(): string {
    return join(this.#folder, "pgbouncer.ini");
  }
}

function install(): void {
  try {
    aptInstall("pgbouncer");
  } catch (cause) {
    throw new Error("This needs pgbouncer and found none: install it (Debian: apt-get install pgbouncer).", { cause });
  }
}

/** It refuses to run as root. */
function owner(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const fields = readFileSync("/etc/passwd", "utf8")
    .split("\n")
    .find((line) => line.startsWith("nobody:"))!
    .split(":");
  return { uid: Number(fields[2]), gid: Number(fields[3]) };
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    socket.once("connect", () => socket.destroy());
  });
}
