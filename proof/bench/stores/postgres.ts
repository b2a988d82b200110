// PostgreSQL under test: one server of the bench's own, with fsync on and otherwise the settings it is shipped with; each place is
// a database of its own with the schema in it.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "pg";
import { PostgresServer } from "../../servers/postgres-server.ts";
import type { Bench } from "../harness.ts";
import type { Filling, TestedStore } from "./tested-store.ts";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
/** Our peers open a connection for each of 50 jobs. */
const SETTINGS = { max_connections: "300" };

export class TestedPostgres implements TestedStore {
  readonly name = "postgres";
  readonly floorBatch = 500;
  readonly floors = { drain: "postgres/drain-floor", enqueue: "postgres/enqueue-floor" };
  #server: Promise<PostgresServer> | undefined;
  #started: PostgresServer | undefined;
  #databases = 0;
  /** By source tree: a database with its schema, to be copied. */
  readonly #templates = new Map<string, Promise<string>>();

  async place(tree = ROOT): Promise<string> {
    const server = await (this.#server ??= this.#start());
    const template =
      this.#templates.get(tree) ?? this.#migrated(server, tree, `bench_template_${this.#templates.size}`);
    this.#templates.set(tree, template);
    const name = `bench_${++this.#databases}`;
    await asked(server.url(), `CREATE DATABASE ${name} TEMPLATE ${await template}`);
    return server.url(name);
  }

  async drop(url: string): Promise<void> {
    const server = await this.#server!;
    await asked(server.url(), `DROP DATABASE ${new URL(url).pathname.slice(1)} WITH (FORCE)`);
  }

  /** By plain SQL, and vacuumed as autovacuum would have done it long before there were so many. */
  async fill(_bench: Bench, url: string, filling: Filling, count: number): Promise<void> {
    const { kind, priority, delay, finished = false, ageMs = 0 } = filling;
    const ended = finished ? "2, 0, now, now, 1, 1" : "0, NULL, 0, 0, 0, 0";
    const due = delay === undefined ? "1, NULL" : "0, now + 30::bigint * 86400000";
    await asked(
      url,
      "SET synchronous_commit = off",
      `INSERT INTO outlive.kinds (name) VALUES ('${kind}') ON CONFLICT DO NOTHING`,
      `WITH filled AS (
         INSERT INTO outlive.jobs (id, kind, priority, input, created_at, state, outcome, started_at, finished_at, fence, worker, lane, run_at)
         SELECT format('fill-%s-%s', (SELECT coalesce(max(seq), 0) FROM outlive.jobs), n), k.id, ${priority}, format('{"n":%s}', n), now, ${ended}, ${due}
         FROM outlive.kinds k, (SELECT outlive.now_ms() - ${ageMs}) AS clock (now), generate_series(1, ${count}) AS n WHERE k.name = '${kind}' RETURNING id, seq)
       INSERT INTO outlive.job_ids (id, seq) SELECT id, seq FROM filled`,
      `INSERT INTO outlive.kind_deltas (kind, jobs) SELECT id, ${count} FROM outlive.kinds WHERE name = '${kind}'`,
      "VACUUM (ANALYZE) outlive.jobs, outlive.job_ids",
    );
  }

  destroyNow(): void {
    this.#started?.destroyNow();
  }

  /** CPU of all processes of the server so far, in ms; null where there is no /proc. */
  async cpuMs(): Promise<number | null> {
    const { folder } = await this.#server!;
    try {
      const postmaster = Number(readFileSync(join(folder, "data", "postmaster.pid"), "utf8").split("\n")[0]);
      const children = readFileSync(`/proc/${postmaster}/task/${postmaster}/children`, "utf8").trim().split(" ");
      return cpuOf(postmaster) + children.reduce((sum, pid) => sum + cpuOf(Number(pid)), 0);
    } catch {
      return null;
    }
  }

  async #start(): Promise<PostgresServer> {
    const server = await PostgresServer.create({ fsync: true, settings: SETTINGS });
    this.#started = server;
    const [version] = await asked<{ server_version: string }>(server.url(), "SHOW server_version");
    process.stderr.write(
      `PostgreSQL ${version!.server_version}, fsync on, max_connections 300, all other settings as shipped\n`,
    );
    return server;
  }

  /** By the tree's own command line, which every version has. */
  async #migrated(server: PostgresServer, tree: string, name: string): Promise<string> {
    await asked(server.url(), `CREATE DATABASE ${name}`);
    const command = [join(tree, "src/cli/bin.ts"), "migrate", "up", "--store", server.url(name)];
    execFileSync(process.execPath, ["--disable-warning=ExperimentalWarning", ...command], {
      stdio: ["ignore", "ignore", 2],
    });
    return name;
  }
}

/** Runs the statements one after the other on a connection of their own; returns the rows of the last. */
export async function asked<R>(url: string, ...statements: readonly string[]): Promise<R[]> {
  const client = new Client({ connectionString: url });
  await client.connect();
  try {
    let rows: R[] = [];
    for (const statement of statements) rows = (await client.query(statement)).rows as R[];
    return rows;
  } finally {
    await client.end();
  }
}

/** Of this process and of its children that have ended: their time is in their parent's sums. */
function cpuOf(pid: number): number {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const ticks = (...at: readonly number[]): number => at.reduce((sum, field) => sum + Number(fields[field]), 0) * 10;
    return (ownMs(pid) ?? ticks(11, 12)) + ticks(13, 14);
  } catch {
    return 0;
  }
}

/** The scheduler counts in ns, `stat` in hundredths of a second only; null where the kernel was built without it. */
function ownMs(pid: number): number | null {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, "latin1").split(" ")[0]) / 1e6;
  } catch {
    return null;
  }
}
