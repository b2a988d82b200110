// One schema on a PostgreSQL server with its children and its engines, all gone after the test.
import { fork } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, type EngineOptions, open } from "../../src/index.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { freshSchema, withClient } from "../support/postgres.ts";
import { Child } from "../support/processes.ts";
import { jobs } from "./jobs.ts";

/** Deaths are found by their locks at once; a process that stands still for seconds on a busy machine is not taken for silent. */
export const PATIENT = { interval: "500ms", lease: "30s", probe: "100ms", sweep: "1s" } as const;
/** For a worker that falls silent in a test: found while the test waits, but longer than a maintenance's thread takes to boot and to connect. */
export const SHORT = { ...PATIENT, lease: "3s" } as const;

export interface ChildOptions {
  readonly concurrency?: number;
  readonly heartbeat?: NonNullable<EngineOptions["heartbeat"]>;
  readonly poll?: NonNullable<EngineOptions["poll"]>;
  /** Another way to the same server: through a proxy or a pooler. */
  readonly url?: string;
  /** The Redis server of its liveness. Default: none. */
  readonly liveness?: string;
  /** The kinds that it runs, by name. Default: all. */
  readonly only?: readonly string[];
  /** Where it is killed (kill-at-postgres.ts). */
  readonly killAt?: string;
  /** In a PID namespace of its own: as on another host, no kernel can prove anything about it to the others. */
  readonly elsewhere?: boolean;
}

const NODE_OPTIONS = ["--disable-warning=ExperimentalWarning"];
const ELSEWHERE = {
  execPath: "unshare",
  execArgv: ["--pid", "--fork", "--kill-child", process.execPath, ...NODE_OPTIONS],
};

export class PostgresPlace {
  readonly url: string;
  readonly schema: string;
  readonly #folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  readonly #children: Child[] = [];
  readonly #engines: Engine[] = [];

  private constructor(url: string, schema: string) {
    this.url = url;
    this.schema = schema;
  }

  async #end(): Promise<void> {
    for (const child of this.#children) child.kill("SIGKILL");
    await Promise.all(this.#children.map((child) => child.exited));
    for (const engine of this.#engines) await engine.close({ grace: "0ms" }).catch(() => {});
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 10 });
  }

  /** On the shared server. */
  static async shared(t: TestContext): Promise<PostgresPlace> {
    // Hooks run in the order in which they came: everybody is gone before the schema is dropped.
    const places: PostgresPlace[] = [];
    t.after(async () => {
      for (const place of places) await place.#end();
    });
    const { url, schema } = await freshSchema(t);
    const place = new PostgresPlace(url, schema);
    places.push(place);
    await place.#ledger();
    return place;
  }

  /** On a server of the test's own. */
  static async on(t: TestContext, url: string, schema = "outlive"): Promise<PostgresPlace> {
    await withClient(url, (client) => migrate(client, schema));
    const place = new PostgresPlace(url, schema);
    t.after(() => place.#end());
    await place.#ledger();
    return place;
  }

  child(options: ChildOptions = {}): Child {
    const {
      concurrency = 10,
      heartbeat = PATIENT,
      poll = "200ms",
      url = this.url,
      elsewhere = false,
      liveness,
      only,
      killAt,
    } = options;
    const file = fileURLToPath(new URL("./worker-process.ts", import.meta.url));
    const killer = fileURLToPath(new URL("../support/kill-at-postgres.ts", import.meta.url));
    const execArgv = [...NODE_OPTIONS, ...(killAt === undefined ? [] : ["--import", killer])];
    const given = { concurrency, heartbeat, poll, schema: this.schema, liveness, only };
    const child = new Child(
      fork(file, [url, JSON.stringify(given)], {
        ...(elsewhere ? ELSEWHERE : { execArgv }),
        env: {
          ...process.env,
          OUTLIVE_EFFECTS: this.#effects,
          OUTLIVE_TEST_SCHEMA: this.schema,
          ...(killAt !== undefined && { OUTLIVE_KILL_AT: killAt }),
        },
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#children.push(child);
    return child;
  }

  async engine(options: EngineOptions = {}): Promise<Engine> {
    const postgres = { schema: this.schema, ...options.postgres };
    const engine = await open(this.url, { jobs, logger: false, heartbeat: PATIENT, ...options, postgres });
    this.#engines.push(engine);
    return engine;
  }

  query<R = Record<string, unknown>>(text: string, values: unknown[] = []): Promise<R[]> {
    const sql = text.replaceAll("outlive.", `"${this.schema}".`);
    return withClient(this.url, async (client) => (await client.query(sql, values)).rows as R[]);
  }

  /** How often each job is in the ledger. */
  async ledgerRows(): Promise<Map<string, number>> {
    const rows = await this.query<{ job: string; n: string }>(
      "SELECT job, count(*) AS n FROM outlive.ledger GROUP BY job",
    );
    return new Map(rows.map(({ job, n }) => [job, Number(n)]));
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

  /** The ledger of the transfers, without any constraint that could hide a double. */
  async #ledger(): Promise<void> {
    await this.query("CREATE TABLE outlive.ledger (job text, n integer)");
  }
}
