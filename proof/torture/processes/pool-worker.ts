// One worker process of the rig, on a pool of its own, as a program brings one that has it already.
import pg from "pg";
import { CONCURRENCY, storeOptions } from "./settings.ts";
import { workUnderParent } from "./work-under-parent.ts";

const [url, only] = process.argv.slice(2);
/** One session for each job that commits, and one for the engine. */
const pool = new pg.Pool({ connectionString: url!, max: CONCURRENCY + 1, allowExitOnIdle: true });
// A session that breaks while it is idle is replaced.
pool.on("error", () => {});
const options = storeOptions();
workUnderParent("postgres:", { ...options, postgres: { ...options.postgres, pool } }, only);
