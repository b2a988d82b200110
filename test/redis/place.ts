// One store on a Redis server with its children and its engines, all gone after the test.
import { fork } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, type EngineOptions, open } from "../../src/index.ts";
import { kinds } from "../support/jobs.ts";
import { Child } from "../support/processes.ts";
import { freshName } from "../support/redis.ts";

export const PATIENT = { interval: "500ms", lease: "30s", probe: "100ms", sweep: "1s" } as const;
/** For a worker that falls silent in a test. */
export const SHORT = { ...PATIENT, lease: "3s" } as const;

export interface ChildOptions {
  readonly concurrency?: number;
  readonly heartbeat?: NonNullable<EngineOptions["heartbeat"]>;
  readonly poll?: NonNullable<EngineOptions["poll"]>;
  /** The kinds that it runs, by name. Default: all. */
  readonly only?: readonly string[];
  /** In a PID namespace of its own: as on another host, no kernel can prove anything about it to the others. */
  readonly elsewhere?: boolean;
  /** Likewise, and in this network namespace. */
  readonly network?: string;
  /** How it reaches the store. Default: as the place does. */
  readonly url?: string;
  /** Where it is killed (kill-at-redis.ts). */
  readonly killAt?: string;
}

const NODE_OPTIONS = ["--disable-warning=ExperimentalWarning"];
const ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child", process.execPath, ...NODE_OPTIONS];

export class RedisPlace {
  readonly url: string;
  readonly #folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  readonly #children: Child[] = [];
  readonly #engines: Engine[] = [];

  constructor(t: TestContext, url: string) {
    this.url = url;
    t.after(() => this.#end());
  }

  /** On the shared server. */
  static async shared(t: TestContext): Promise<RedisPlace> {
    const { url, name } = await freshName(t);
    return new RedisPlace(t, `${url}?store=${name}`);
  }

  async #end(): Promise<void> {
    for (const child of this.#children) child.kill("SIGKILL");
    await Promise.all(this.#children.map((child) => child.exited));
    for (const engine of this.#engines) await engine.close({ grace: "0ms" }).catch(() => {});
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 10 });
  }

  child({
    concurrency = 10,
    heartbeat = PATIENT,
    poll = "200ms",
    only,
    elsewhere = false,
    network,
    url = this.url,
    killAt,
  }: ChildOptions = {}): Child {
    const file = fileURLToPath(new URL("./worker-process.ts", import.meta.url));
    const killer = fileURLToPath(new URL("../support/kill-at-redis.ts", import.meta.url));
    const execArgv = [...NODE_OPTIONS, ...(killAt === undefined ? [] : ["--import", killer])];
    const [execPath, ...before] = network === undefined ? ELSEWHERE : ["ip", "netns", "exec", network, ...ELSEWHERE];
    const child = new Child(
      fork(file, [url, JSON.stringify({ concurrency, heartbeat, poll, only })], {
        ...(elsewhere || network !== undefined ? { execPath, execArgv: before } : { execArgv }),
        env: {
          ...process.env,
          OUTLIVE_EFFECTS: this.#effects,
          ...(killAt !== undefined && { OUTLIVE_KILL_AT: killAt }),
        },
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#children.push(child);
    return child;
  }

  async engine(options: EngineOptions = {}): Promise<Engine> {
    const jobs = Object.values(kinds);
    const engine = await open(this.url, { jobs, logger: false, heartbeat: PATIENT, ...options });
    this.#engines.push(engine);
    return engine;
  }

  /** How often each effect happened. */
  effects(): Map<string, number> {
    const counts = new Map<string, number>();
    let text = "";
    try {
      text = readFileSync(this.#effects, "utf8");
    } catch {
      // None happened.
    }
    for (const line of text.split("\n").filter(Boolean)) counts.set(line, (counts.get(line) ?? 0) + 1);
    return counts;
  }

  get #effects(): string {
    return join(this.#folder, "effects.txt");
  }
}
