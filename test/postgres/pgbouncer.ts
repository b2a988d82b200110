// The rig's pgbouncer for as long as a test takes.
import type { TestContext } from "node:test";
import { PgBouncer, type PoolMode } from "../../proof/torture/faults/pgbouncer.ts";

/** Returns the address of the same database through the pooler. */
export async function pgbouncer(t: TestContext, url: string, mode: PoolMode): Promise<string> {
  const bouncer = await PgBouncer.before(url, mode);
  t.after(() => bouncer.destroyNow());
  return bouncer.url;
}
