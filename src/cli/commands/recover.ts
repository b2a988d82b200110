// `outlive recover`: one pass of recovery by hand, or what it would do. `outlive recovery`: how the latest one went.
import type { Report } from "../../client.ts";
import type { Engine } from "../../engine/engine.ts";
import type { RecoverOptions } from "../../engine/operator.ts";
import { humanMs } from "../../job/time.ts";
import type { RecoveryReport } from "../../recovery/incident.ts";
import type { HowLost } from "../../stores/liveness.ts";
import { progress } from "../terminal.ts";
import { allPages, type Deaths, knownWorker, noSuchIncident } from "../lookup.ts";
import type { Register } from "../main.ts";
import { count, oneLine, stamp } from "../words.ts";

/** `recover --dry-run --json` is a list of these. */
export interface Unrecovered {
  readonly worker: string;
  readonly pid: number;
  readonly host: string;
  readonly how: HowLost;
  readonly evidence: string | null;
  readonly heartbeatAgeMs: number;
  readonly jobs: readonly { readonly id: string; readonly kind: string; readonly attempt: number }[];
}

/** Between two checks of which workers are silent. */
const POLL_MS = 500;

export const recoverCommand: Register = (program, run) => {
  program
    .command("recover")
    .description("requeue the jobs of dead workers now")
    .option("--dry-run", "only print whose jobs would be requeued; change nothing")
    .option("--restored", "after restoring a backup: requeue at once every job that it lists as running")
    .option("--wait", "watch silent workers for one lease, and recover those that stay silent")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ dryRun?: boolean; wait?: boolean; restored?: boolean }>();
        const engine = await attach();
        if (flags.wait === true) await watchSilent(engine, terminal.remark);
        if (flags.dryRun === true) {
          const wouldRecover = await unrecovered(engine);
          terminal.answer({ wouldRecover }, () => unrecoveredText(wouldRecover));
          return;
        }
        const onJobs = progress(terminal.remark, "recover");
        const report = await recoverWithProgress(engine, onJobs, { restored: flags.restored === true });
        const silent = await silentText(engine);
        terminal.answer({ report: withoutText(report) }, () =>
          (report?.text ?? `No worker is dead; nothing was recovered.\n${silent}`).trimEnd(),
        );
      }),
    );
};

/** One pass, with the number of jobs so far as it grows. */
export async function recoverWithProgress(
  engine: Pick<Engine, "on" | "operator">,
  onJobs: (jobs: number) => void,
  options: RecoverOptions = {},
): Promise<Report | null> {
  let jobs = 0;
  const off = engine.on("job.recovered", () => onJobs(++jobs));
  try {
    return await engine.operator.recover(options);
  } finally {
    off();
  }
}

/** The report of programs: the text is for people. */
export function withoutText(report: Report | null): RecoveryReport | null {
  if (!report) return null;
  const { text: _, ...rest } = report;
  return rest;
}

export async function unrecovered(engine: Engine): Promise<readonly Unrecovered[]> {
  const deaths = await engine.operator.deaths();
  if (deaths.length === 0) return [];
  const held = new Map<string, { id: string; kind: string; attempt: number }[]>(
    deaths.map(({ worker }) => [worker.id, []]),
  );
  for await (const page of allPages(engine, { state: "running" }))
    for (const { id, kind, attempt, worker } of page) held.get(worker ?? "")?.push({ id, kind, attempt });
  const now = Date.now();
  return deaths.map(({ worker, death }) => ({
    worker: worker.id,
    pid: worker.pid,
    host: worker.host,
    how: death.how,
    evidence: death.evidence,
    heartbeatAgeMs: Math.max(0, now - worker.heartbeatAt),
    jobs: held.get(worker.id)!,
  }));
}

const MAX_LISTED = 20;

export function unrecoveredText(all: readonly Unrecovered[]): string {
  if (all.length === 0) return "No worker is dead; nothing would be recovered.";
  const lines = all.flatMap(({ worker, pid, how, evidence, heartbeatAgeMs, jobs }) => [
    `${worker} (pid ${pid}) is ${how}; last heartbeat ${humanMs(heartbeatAgeMs)} ago${evidence === null ? "" : `; ${oneLine(evidence, 200)}`}; holds ${count(jobs.length, "job")}`,
    ...jobs.slice(0, MAX_LISTED).map(({ id, kind, attempt }) => `  - ${id} (${kind}, attempt ${attempt})`),
    ...(jobs.length > MAX_LISTED ? [`  … and ${jobs.length - MAX_LISTED} more`] : []),
  ]);
  return [...lines, "", "Nothing was changed. To do it: outlive recover"].join("\n");
}

/** Silence is a heartbeat that stands still for one lease while a process watches; an age alone proves nothing. */
async function watchSilent(engine: Engine, remark: (text: string) => void): Promise<void> {
  const silent = await silentOnes(engine, await engine.operator.deaths());
  if (silent.length === 0) return;
  const leaseMs = Math.max(...silent.map((worker) => worker.leaseMs));
  remark(
    `Watching ${count(silent.length, "silent worker")} for ${humanMs(leaseMs)}: ${silent.map(({ id }) => id).join(", ")}`,
  );
  const until = performance.now() + leaseMs + POLL_MS;
  while (performance.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    if ((await silentOnes(engine, await engine.operator.deaths())).length === 0) return;
  }
}

/** Silent by their age, and not yet judged. */
async function silentOnes(engine: Engine, deaths: Deaths): Promise<readonly { id: string; leaseMs: number }[]> {
  const now = Date.now();
  const judged = new Set(deaths.map(({ worker }) => worker.id));
  return (await engine.workers())
    .filter(({ id }) => !judged.has(id))
    .map((worker) => knownWorker(worker, deaths, now))
    .filter(({ known }) => known === "silent");
}

async function silentText(engine: Engine): Promise<string> {
  const silent = await silentOnes(engine, []);
  if (silent.length === 0) return "";
  return `${count(silent.length, "worker is", "workers are")} silent but not proved dead (${silent.map(({ id }) => id).join(", ")}): outlive recover --wait`;
}

// `outlive recovery status` and `outlive recovery report`: other spellings, for looking at the latest recovery alone.

export const recoveryCommand: Register = (program, run) => {
  const recovery = program.command("recovery").description("the latest recovery: status, report");
  recovery
    .command("status")
    .description("whether a worker has to be recovered, and how the latest recovery went")
    .action(
      run(async ({ terminal, attach }) => {
        const engine = await attach();
        const wouldRecover = await unrecovered(engine);
        const latest = withoutText(await engine.report());
        terminal.answer({ wouldRecover, latest }, () => {
          const failed = latest?.recoveredJobs.filter(({ success }) => !success).length ?? 0;
          const last = latest
            ? `The latest recovery (${stamp(latest.startedAt)}) recovered ${count(latest.deadWorkers.length, "dead worker")} and ${count(latest.recoveredJobs.length, "job")}${failed === 0 ? "" : `, ${failed} of them failed`}${latest.completedAt === null ? ", and is not finished" : ""}. Its report: outlive recovery report`
            : "There was no recovery yet: no worker has died.";
          return [unrecoveredText(wouldRecover), "", last].join("\n");
        });
      }),
    );
  recovery
    .command("report")
    .argument("[incident]", "the id of an incident (default: the latest recovery)")
    .description("the report of the latest recovery that found anything, or of one incident")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0];
        const report = await (await attach()).report(id);
        if (!report && id !== undefined) throw noSuchIncident(id);
        terminal.answer(
          { report: withoutText(report) },
          () => report?.text ?? "There was no recovery yet: no worker has died.",
        );
      }),
    );
};
