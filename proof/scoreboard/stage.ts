// Where the experiments play: the servers of the run, a fresh place for each round, and the contenders' processes in it.
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import pg from "pg";
import { PostgresServer } from "../../test/support/postgres-server.ts";
import type { Mode, Place } from "./adapter.ts";
import type { Contender } from "./contenders.ts";
import type { Installation } from "./installation.ts";
import { Program } from "./processes.ts";
import { REDIS_AS_RECOMMENDED, RedisServer } from "./servers.ts";

export class Stage {
  readonly postgres: PostgresServer;
  readonly redis: RedisServer;
  readonly #installation: Installation;
  readonly #folder = mkdtempSync(join(tmpdir(), "outlive-scoreboard-"));
  #places = 0;

  static async create(installation: Installation): Promise<Stage> {
    // Many processes with pools of their own run at the same time; all other settings are PostgreSQL's own.
    const postgres = await PostgresServer.create({ fsync: true, settings: { max_connections: "500" } });
    process.once("exit", () => postgres.destroyNow());
    return new Stage(installation, postgres, await RedisServer.create(REDIS_AS_RECOMMENDED));
  }

  private constructor(installation: Installation, postgres: PostgresServer, redis: RedisServer) {
    this.#installation = installation;
    this.postgres = postgres;
    this.redis = redis;
    process.once("exit", () => rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5 }));
  }

  /** An unused store: a file, a database or a prefix of its own. */
  async place({ home, package: name }: Contender, redis = this.redis): Promise<Place> {
    const place = `place_${++this.#places}`;
    if (home === "sqlite") return { address: join(mkdtempSync(join(this.#folder, `${place}-`)), "jobs.db") };
    if (home === "redis") return { address: `redis://127.0.0.1:${redis.port}/${place}` };
    await this.sql(`CREATE DATABASE ${place}`);
    const address = this.postgres.url(place);
    // The peers migrate when they start; our tables are made by a deploy.
    if (name === null) await migrate(address);
    return { address };
  }

  start(contender: Contender, place: Place, mode: Mode): Promise<Program> {
    const runtime = this.#installation.runtimes[contender.id];
    if (!runtime) throw new Error(`${contender.name} can't be run here`);
    return Program.start(contender, runtime, place, mode);
  }

  /** One that works; ended with `Program.kill`. */
  async worker(contender: Contender, place: Place, mode: Mode, concurrency = 1): Promise<Program> {
    const program = await this.start(contender, place, mode);
    await program.ask("work", { concurrency });
    return program;
  }

  /** A line of the server's own, such as its version. */
  async sql(text: string): Promise<string> {
    const client = new pg.Client(this.postgres.url());
    await client.connect();
    try {
      const { rows } = await client.query<Record<string, string>>(text);
      return Object.values(rows[0] ?? {})[0] ?? "";
    } finally {
      await client.end();
    }
  }

  async end(): Promise<void> {
    await this.postgres.destroy();
    this.redis.destroyNow();
  }
}

async function migrate(address: string): Promise<void> {
  const outlive = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));
  await promisify(execFile)(process.execPath, ["--disable-warning=ExperimentalWarning", outlive, "migrate", "up"], {
    env: { ...process.env, OUTLIVE_STORE: address },
  });
}
