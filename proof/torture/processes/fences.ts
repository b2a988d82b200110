// Fences only grow: the starts of a job as the processes reported them, and the ends of its attempts as the store kept them, each as far as
// their order is known. Who was frozen between its claim and its start tells of it late, so the instant of a line alone orders nothing.
import type { Engine, JobInfo } from "../../../src/index.ts";
import type { Line } from "./history.ts";

type Start = Line & { readonly what: "start" };

/** An attempt's fence, as it is printed. */
interface Fence {
  readonly epoch: number;
  readonly number: number;
}

/** So many jobs are asked for at once. */
const AT_ONCE = 20;

/** What is wrong with the fences, a sentence each. */
export async function wrongFences(
  engine: Engine,
  lines: readonly Line[],
  jobs: ReadonlyMap<string, JobInfo>,
): Promise<string[]> {
  const starts = Map.groupBy(
    lines.filter((line) => line.what === "start"),
    ({ id }) => id,
  );
  const found = [...starts].flatMap(([id, of]) => [
    ...unlike(id, of),
    ...backward(id, of),
    ...beyond(of, jobs.get(id)),
  ]);
  const retaken = [...jobs.values()].filter(({ attempt }) => attempt > 1);
  for (let from = 0; from < retaken.length; from += AT_ONCE)
    found.push(
      ...(await Promise.all(retaken.slice(from, from + AT_ONCE).map((job) => outOfOrder(engine, job)))).flat(),
    );
  return found;
}

/** The number of the attempt that a line tells of. */
export function attemptOf({ fence }: Start): number {
  return parsed(fence).number;
}

function unlike(id: string, starts: readonly Start[]): string[] {
  const seen = new Set(starts.map(({ fence }) => fence));
  return seen.size === starts.length
    ? []
    : [`job ${id} was started twice under one fence: ${starts.map(({ fence }) => fence).join(", ")}`];
}

/** Known is the order of two starts in one process, and that of a start and whatever a process did that was begun after it. */
function backward(id: string, starts: readonly Start[]): string[] {
  return starts.flatMap((later, at) => {
    const before = starts
      .slice(0, at)
      .filter((one) => (one.pid === later.pid && one.since === later.since) || one.at < later.since)
      .find((one) => compare(parsed(one.fence), parsed(later.fence)) > 0);
    return before ? [`job ${id} was started under fence ${later.fence} after ${before.fence}`] : [];
  });
}

/** The store knows the latest. */
function beyond(starts: readonly Start[], job: JobInfo | undefined): string[] {
  if (!job) return [];
  return starts
    .filter(({ fence }) => compare(parsed(fence), latestOf(job)) > 0)
    .map(
      ({ id, fence }) =>
        `job ${id} was started under fence ${fence} and its latest in the store is ${told(latestOf(job))}`,
    );
}

/** Each attempt that did not succeed left one entry, in the order in which they were written. */
async function outOfOrder(engine: Engine, { id }: JobInfo): Promise<string[]> {
  const job = await engine.get(id);
  if (!job) return [];
  const ended = job.history.filter(({ from, to }) => from === "running" && to !== "running");
  const fences = ended.map(({ epoch, attempt }): Fence => ({ epoch, number: attempt }));
  if (job.state === "succeeded") fences.push(latestOf(job));
  return fences.every((fence, at) => at === 0 || compare(fences[at - 1]!, fence) < 0)
    ? []
    : [`the attempts of job ${id} ended under fences that do not grow: ${fences.map(told).join(", ")}`];
}

function latestOf({ epoch, attempt }: JobInfo): Fence {
  return { epoch, number: attempt };
}

function parsed(fence: string): Fence {
  const [epoch, number] = fence.split(".").map(Number);
  return { epoch: epoch!, number: number! };
}

function told({ epoch, number }: Fence): string {
  return `${epoch}.${number}`;
}

function compare(a: Fence, b: Fence): number {
  return a.epoch - b.epoch || a.number - b.number;
}
