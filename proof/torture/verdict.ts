// The judge of a file that a death or a power loss left: it opens, is sound, holds all that was promised, holds whole transactions
// only, and the rest of the work can be finished, each commit exactly once.
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { Engine, JobInfo } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { reopen, type Reopened } from "./reopened.ts";
import { COMMITTING_KINDS, makeKinds } from "./scenarios/kinds.ts";
import type { Promised } from "./scenarios/promised.ts";
import { DATABASE } from "./scenarios/scenario.ts";

/** Findings, each a sentence. None in any of the lists: every promise was kept. */
export interface Verdict {
  /** Something acknowledged is missing, or less far than was acknowledged. */
  readonly lost: readonly string[];
  /** The file does not open, is not sound, shows a part of a transaction, or gave a fence twice. */
  readonly corrupt: readonly string[];
  /** The rows of a commit are there more than once. */
  readonly committedTwice: readonly string[];
  /** Work that is there could not be finished. */
  readonly stuck: readonly string[];
}

/** What a file holds, read through the engine. */
interface Found {
  readonly jobs: ReadonlyMap<string, JobInfo>;
  /** How many rows of the user's name each job. */
  readonly ledger: ReadonlyMap<string, number>;
  readonly orders: ReadonlyMap<string, number>;
  readonly incidents: ReadonlySet<string>;
}

type Findings = { [Kind in keyof Verdict]: string[] };

export function isBroken(verdict: Verdict): boolean {
  return Object.values(verdict).some((findings: readonly string[]) => findings.length > 0);
}

/** Judges the file in `folder` and finishes its work. */
export async function judge(
  folder: string,
  promised: Promised,
  { rebooted }: { readonly rebooted: boolean },
): Promise<Verdict> {
  const findings: Findings = { lost: [], corrupt: [], committedTwice: [], stuck: [] };
  const kinds = makeKinds(
    () => {},
    () => {},
  );
  let reopened: Reopened;
  try {
    reopened = await reopen(join(folder, DATABASE), Object.values(kinds), rebooted);
  } catch (thrown) {
    findings.corrupt.push(`it does not open: ${(thrown as Error).message}`);
    return findings;
  }
  const { engine } = reopened;
  try {
    findings.corrupt.push(...structure(join(folder, DATABASE)));
    const contradictions = await engine.operator.inconsistencies();
    findings.corrupt.push(
      ...contradictions.filter(({ what }) => what === "corrupt-content").map(({ detail }) => detail),
    );
    const before = await look(engine);
    await comparePromises(engine, before, promised, findings);
    compareTransactions(before, promised, findings);
    await reopened.finish();
    const after = await look(engine);
    compareTransactions(after, promised, findings);
    compareEnds(before, after, findings);
    compareFences(before, after, promised, findings);
  } catch (thrown) {
    findings.stuck.push(`the work could not be finished: ${(thrown as Error).message}`);
  } finally {
    await engine.close();
  }
  return findings;
}

/** Asks SQLite in this process: a state is judged in 20 ms, and the child process of the store's own check would cost three times that. */
function structure(path: string): readonly string[] {
  const db = new DatabaseSync(path, { readOnly: true });
  try {
    const rows = db.prepare("PRAGMA integrity_check").all() as { integrity_check: string }[];
    return rows.map(({ integrity_check: finding }) => finding).filter((finding) => finding !== "ok");
  } finally {
    db.close();
  }
}

async function look(engine: Engine): Promise<Found> {
  const jobs = new Map<string, JobInfo>();
  for (let after: string | undefined; ;) {
    const page = await engine.list({ limit: 1_000, ...(after === undefined ? {} : { after }) });
    for (const job of page.jobs) jobs.set(job.id, job);
    if (page.next === null) break;
    after = page.next;
  }
  const [ledger, orders] = await engine.transaction(sqlite, (tx) => {
    const tables = new Set(tx.all<{ name: string }>("SELECT name FROM sqlite_schema").map(({ name }) => name));
    return ["ledger", "orders"].map((table) =>
      tables.has(table)
        ? tx.all<{ job: string; n: number }>(`SELECT job, count(*) AS n FROM ${table} GROUP BY job`)
        : [],
    );
  });
  const counted = (rows: readonly { job: string; n: number }[]): Map<string, number> =>
    new Map(rows.map(({ job, n }) => [job, n]));
  const incidents = new Set((await engine.incidents({ limit: 1_000 })).map(({ id }) => id));
  return { jobs, ledger: counted(ledger!), orders: counted(orders!), incidents };
}

async function comparePromises(engine: Engine, found: Found, promised: Promised, findings: Findings): Promise<void> {
  for (const id of promised.enqueued) {
    const job = found.jobs.get(id);
    // Retention takes what has ended, and nothing ends that was not claimed.
    if (!job && !(promised.purging && promised.claimed.has(id)))
      findings.lost.push(`job ${id} was enqueued and is not there`);
  }
  for (const [id, end] of promised.ended) {
    const job = found.jobs.get(id);
    if (job && job.state !== end) findings.lost.push(`job ${id} was ${end} and is ${job.state}`);
  }
  for (const [id, { epoch, fence }] of promised.claimed) {
    const job = found.jobs.get(id);
    if (job && (job.attempt < fence || job.epoch < epoch))
      findings.lost.push(`job ${id} was claimed under fence ${epoch}/${fence} and has ${job.epoch}/${job.attempt}`);
  }
  for (const [id, names] of promised.steps) {
    if (!found.jobs.has(id)) continue;
    const kept = new Set((await engine.get(id))!.steps.map(({ name }) => name));
    for (const name of names)
      if (!kept.has(name)) findings.lost.push(`step ${name} of job ${id} was kept and is not there`);
  }
  for (const id of promised.ordered)
    if (!found.orders.has(id)) findings.lost.push(`the order of job ${id} is not there`);
  for (const id of promised.incidents) if (!found.incidents.has(id)) findings.lost.push(`incident ${id} is not there`);
}

/** What was written in one transaction is there together or not at all, promised or not. */
function compareTransactions(found: Found, promised: Promised, findings: Findings): void {
  for (const ids of promised.together) {
    const there = ids.filter((id) => found.jobs.has(id)).length;
    if (there > 0 && there < ids.length && !promised.purging)
      findings.corrupt.push(`${there} of ${ids.length} jobs of one transaction are there (${ids[0]} ...)`);
  }
  for (const [id, rows] of found.ledger) {
    if (rows > 1) findings.committedTwice.push(`job ${id} has ${rows} rows in the ledger`);
    const job = found.jobs.get(id);
    if (job ? job.state !== "succeeded" : !promised.purging)
      findings.corrupt.push(`job ${id} has a row in the ledger and is ${job?.state ?? "not there"}`);
  }
  for (const job of found.jobs.values()) {
    if (COMMITTING_KINDS.has(job.kind) && job.state === "succeeded" && !found.ledger.has(job.id))
      findings.corrupt.push(`job ${job.id} succeeded and has no row in the ledger`);
  }
  for (const [id, rows] of found.orders) {
    if (rows > 1) findings.committedTwice.push(`order ${id} is there ${rows} times`);
    if (!found.jobs.has(id)) findings.corrupt.push(`order ${id} is there without its job`);
  }
}

/** Everything that was there has ended, and what had ended before did not run again. */
function compareEnds(before: Found, after: Found, findings: Findings): void {
  for (const job of before.jobs.values()) {
    const now = after.jobs.get(job.id);
    if (now?.state !== "succeeded" && now?.state !== "cancelled")
      findings.stuck.push(`job ${job.id} was ${job.state} and ends as ${now?.state ?? "nothing"}`);
    if (job.state === "succeeded" && now && now.attempt !== job.attempt)
      findings.committedTwice.push(`job ${job.id} had succeeded and ran again`);
  }
}

/** An attempt after the reopening has a fence above every one that was handed out before, also where that claim itself is lost. */
function compareFences(before: Found, after: Found, promised: Promised, findings: Findings): void {
  for (const [id, { epoch, fence }] of promised.claimed) {
    const [was, now] = [before.jobs.get(id), after.jobs.get(id)];
    if (!now || (was?.epoch === now.epoch && was.attempt === now.attempt)) continue;
    if (now.epoch < epoch || (now.epoch === epoch && now.attempt <= fence))
      findings.corrupt.push(`job ${id} had fence ${epoch}/${fence} and ran again under ${now.epoch}/${now.attempt}`);
  }
}
