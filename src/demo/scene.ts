// Where the demo plays: a temporary file, a schema of its own on a PostgreSQL server that it is given, or a server of its own.
import { join } from "node:path";
import { ErrorCode, OutliveError } from "../core/errors.ts";
import type { Engine } from "../index.ts";
import { migrationsOf } from "../migrations.ts";
import { postgres } from "../postgres.ts";
import { atEnd } from "./clean-up.ts";
import type { DemoOptions } from "./options.ts";
import { PostgresServer } from "./postgres-server.ts";
import { newDemoSchema, type Scene } from "./vault.ts";

let schemaToDrop: string | null = null;

export async function setScene(options: DemoOptions, folder: string): Promise<Scene> {
  if (options.store === "sqlite") return { url: `sqlite:${join(folder, "bank.db")}`, schema: null };
  const schema = newDemoSchema();
  const url = options.url ?? (await ownServer(options.keep, schema));
  await (await migrationsOf(url, { postgres: { schema } }))!.up();
  schemaToDrop = schema;
  // Said last of all, and only if it is still there.
  atEnd(() => {
    if (schemaToDrop !== null && options.url !== null)
      process.stderr.write(`The schema ${schema} is left on the server.\n`);
  });
  return { url, schema };
}

/** Takes away what was built on somebody else's server. One's own goes as a whole. */
export async function strike(engine: Engine, { url, keep }: DemoOptions): Promise<void> {
  if (schemaToDrop === null || url === null || keep) return;
  const schema = schemaToDrop;
  await engine.transaction(postgres, (tx) => tx.query(`DROP SCHEMA "${schema}" CASCADE`));
  schemaToDrop = null;
}

/** With fsync on: what the demo shows must hold for a server as people run it. */
async function ownServer(keep: boolean, schema: string): Promise<string> {
  try {
    const server = await PostgresServer.create({ fsync: true, mayInstall: false });
    atEnd(() => {
      if (!keep) return server.destroyNow();
      const start = server.leaveNow();
      process.stderr.write(
        `The server is kept: ${server.folder}, schema ${schema}, at ${server.url()} once it is started:\n${start}\n`,
      );
    });
    return server.url();
  } catch (cause) {
    throw new OutliveError(
      ErrorCode.storeUnusable,
      `No PostgreSQL server of its own could be started: ${(cause as Error).message}`,
      "Name one: outlive demo --store postgres://user:password@host/database",
      {},
      { cause },
    );
  }
}
