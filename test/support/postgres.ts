// PostgreSQL as tests ask for it: one server for the whole run, a fresh schema or database for each test, and a server of its own
// for a test that kills, freezes or restarts it. The shared one is started for the first that asks (scripts/test.mjs, over a socket)
// and runs with fsync off: it is never the one that crash tests kill.
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { TestContext } from "node:test";
import pg from "pg";
import { sqlState } from "../../src/stores/postgres/errors.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { PostgresServer, type ServerOptions } from "./postgres-server.ts";

export { PostgresServer, SUPERUSER } from "./postgres-server.ts";

let asked: Promise<string> | undefined;

/** The address of the shared server. A caller may create schemas, databases and roles there. */
export function sharedServer(): Promise<string> {
  asked ??= ask();
  return asked;
}

async function ask(): Promise<string> {
  const given = process.env["OUTLIVE_TEST_POSTGRES_URL"];
  if (given) return given;
  const socket = process.env["OUTLIVE_TEST_POSTGRES_SOCKET"];
  if (socket) return answerOf(socket);
  // Not under `npm test`: this process has its own, and takes it along.
  const server = await PostgresServer.create({ fsync: false });
  process.once("exit", () => server.destroyNow());
  return server.url();
}

function answerOf(socket: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let answer = "";
    const connection = connect(socket);
    connection.setEncoding("utf8");
    connection.on("data", (text: string) => (answer += text));
    connection.once("error", reject);
    connection.once("end", () => {
      if (answer.startsWith("postgres")) resolve(answer);
      else reject(new Error(answer));
    });
  });
}

export interface FreshSchema {
  readonly url: string;
  readonly schema: string;
  /** One statement on a connection of its own. */
  readonly query: (text: string, values?: unknown[]) => Promise<Record<string, unknown>[]>;
}

/** A migrated schema of this test's own, dropped when the test has ended. Several tests share one database. */
export async function freshSchema(t: TestContext): Promise<FreshSchema> {
  const url = await sharedServer();
  const schema = `t_${randomBytes(8).toString("hex")}`;
  await withClient(url, (client) => migrate(client, schema));
  t.after(() => withClient(url, (client) => dropSchema(client, schema)));
  return { url, schema, query: (text, values) => withClient(url, async (c) => (await c.query(text, values)).rows) };
}

/** Hooks run in the order in which they were given, so workers of the test may still be at work: then either may lose a deadlock. */
async function dropSchema(client: pg.Client, schema: string): Promise<void> {
  for (;;) {
    try {
      await client.query(`DROP SCHEMA IF EXISTS "${schema}" CASCADE`);
      return;
    } catch (thrown) {
      if (sqlState(thrown) !== "40P01") throw thrown;
    }
  }
}

/** An empty database of this test's own, dropped when the test has ended. */
export async function freshDatabase(t: { readonly after: (then: () => Promise<unknown>) => void }): Promise<string> {
  const shared = await sharedServer();
  const name = `d_${randomBytes(8).toString("hex")}`;
  await withClient(shared, (client) => client.query(`CREATE DATABASE "${name}" TEMPLATE template0`));
  t.after(() => withClient(shared, (client) => client.query(`DROP DATABASE IF EXISTS "${name}" WITH (FORCE)`)));
  const url = new URL(shared);
  url.pathname = `/${name}`;
  return url.href;
}

/** A server of this test's own, with fsync on unless said otherwise, gone when the test has ended. */
export async function ownServer(t: TestContext, options: Partial<ServerOptions> = {}): Promise<PostgresServer> {
  const server = await PostgresServer.create({ fsync: true, ...options });
  const destroyNow = (): void => server.destroyNow();
  process.once("exit", destroyNow);
  t.after(async () => {
    process.off("exit", destroyNow);
    await server.destroy();
  });
  return server;
}

/** Connects, works, and leaves. */
export async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  // A test may end the server under it; the query in flight says so itself.
  client.on("error", () => {});
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
}
