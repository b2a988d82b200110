// Worker processes with slow commits on one schema of the shared server, and a limit to what a test waits for: what does not come
// is an assertion that fails, not a test that hangs.
import { fork } from "node:child_process";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, open } from "../../src/index.ts";
import { PATIENT } from "../postgres/place.ts";
import { type FreshSchema, freshSchema } from "../support/postgres.ts";
import { Child } from "../support/processes.ts";
import { jobs } from "./commit-jobs.ts";
import type { CommitWorkerOptions } from "./commit-worker.ts";

export interface CommitPlace extends FreshSchema {
  /** An engine of the test's own, which runs nothing. */
  readonly engine: Engine;
  child(options?: Partial<CommitWorkerOptions> & { readonly url?: string }): Child;
}

export async function commitPlace(t: TestContext): Promise<CommitPlace> {
  const children: Child[] = [];
  const engines: Engine[] = [];
  t.after(async () => {
    for (const child of children) child.kill("SIGKILL");
    await Promise.all(children.map((child) => child.exited));
    for (const engine of engines) await engine.close();
  });
  const fresh = await freshSchema(t);
  const { schema } = fresh;
  const engine = await open(fresh.url, { jobs, logger: false, heartbeat: PATIENT, postgres: { schema } });
  engines.push(engine);
  const child: CommitPlace["child"] = ({ url = fresh.url, ...options } = {}) => {
    const file = fileURLToPath(new URL("./commit-worker.ts", import.meta.url));
    const born = new Child(
      fork(file, [url, JSON.stringify({ schema, heartbeat: PATIENT, ...options })], {
        execArgv: ["--disable-warning=ExperimentalWarning"],
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    children.push(born);
    return born;
  };
  return { ...fresh, engine, child };
}

/** Whether this happens within `ms`. */
export async function comes(ms: number, fact: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => (timer = setTimeout(() => resolve(false), ms)));
  try {
    return await Promise.race([fact.then(() => true), late]);
  } finally {
    clearTimeout(timer);
    fact.catch(() => {});
  }
}
