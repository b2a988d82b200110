// The real servers of a run: PostgreSQL and Redis on free ports in temporary directories, started here and stopped by the process
// that was started. Redis is installed from Debian's packages if it is missing and we may.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { aptInstall, mayAptInstall } from "../servers/apt-install.ts";
import { freePort } from "../servers/free-port.ts";

export class RedisServer {
  readonly folder = mkdtempSync(join(tmpdir(), "outlive-redis-"));
  readonly port: number;
  readonly #settings: readonly string[];
  #process: ChildProcess | undefined;

  /** `settings` as on its command line; without any it is as installed. */
  static async create(settings: readonly string[]): Promise<RedisServer> {
    installRedis();
    const server = new RedisServer(await freePort(), settings);
    await server.start();
    return server;
  }

  private constructor(port: number, settings: readonly string[]) {
    this.port = port;
    this.#settings = settings;
    process.once("exit", () => this.destroyNow());
  }

  async start(): Promise<void> {
    const child = spawn(
      "redis-server",
      ["--port", String(this.port), "--bind", "127.0.0.1", "--dir", this.folder, ...this.#settings],
      { stdio: ["ignore", "pipe", "inherit"], detached: true },
    );
    this.#process = child;
    await new Promise<void>((resolve, reject) => {
      let said = "";
      child.stdout.setEncoding("utf8");
      child.stdout.on("data", (text: string) => {
        said = (said + text).slice(-5_000);
        if (said.includes("Ready to accept connections")) resolve();
      });
      child.once("error", reject);
      child.once("exit", (code) => reject(new Error(`Redis ended with ${code} instead of starting:\n${said}`)));
    });
  }

  async kill(): Promise<void> {
    const child = this.#process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  destroyNow(): void {
    this.#process?.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** As BullMQ's guide "Going to production" says. */
export const REDIS_AS_RECOMMENDED = [
  "--appendonly",
  "yes",
  "--appendfsync",
  "everysec",
  "--maxmemory-policy",
  "noeviction",
];

export function redisVersion(): string {
  return execFileSync("redis-server", ["--version"], { encoding: "utf8" }).replace(/^.*v=(\S+).*$/s, "Redis $1");
}

function installRedis(): void {
  if (there()) return;
  if (mayAptInstall()) aptInstall("redis-server");
  if (!there()) throw new Error("redis-server is missing: install it (Debian: apt-get install redis-server).");
}

function there(): boolean {
  return (process.env["PATH"] ?? "").split(":").some((folder) => existsSync(join(folder, "redis-server")));
}
