// What deaths cost the jobs, held against the processes that did die. A worker whose process came back in time was not dead, whatever its
// silence looked like, and no job may be charged a crash for it.
import type { Engine, IncidentSummary, JobInfo, WorkerRow } from "../../../src/index.ts";
import { LEASE_MS } from "./settings.ts";
import { allIncidents } from "./timing.ts";

/**
 * After two leases a worker that has not come back counts as dead. Half a second less: the engine's count may begin a little before the
 * instant that its incident names.
 */
const BACK_WITHIN_MS = 2 * LEASE_MS - 500;
/** So many jobs are asked for at once. */
const AT_ONCE = 20;

/** The jobs that were charged with more crashes than processes died while they held them, a sentence each. */
export async function chargedWithoutDeath(engine: Engine, jobs: readonly JobInfo[]): Promise<string[]> {
  const charged = jobs.filter(({ counters }) => counters.crashes > 0 || counters.blamed > 0);
  if (charged.length === 0) return [];
  const [incidents, workers] = await Promise.all([allIncidents(engine), engine.workers({ which: "all" })]);
  const returned = new Set(incidents.filter((incident) => cameBack(incident, workers)).map(({ id }) => id));
  const found: string[] = [];
  for (let from = 0; from < charged.length; from += AT_ONCE)
    found.push(
      ...(
        await Promise.all(
          charged.slice(from, from + AT_ONCE).map(({ id }) => chargedBeyondDeaths(engine, id, returned)),
        )
      ).flat(),
    );
  return found;
}

/** The process of the worker registered again soon after its work was taken: it had lost contact, and not its life. */
export function cameBack({ worker, detectedAt }: IncidentSummary, workers: readonly WorkerRow[]): boolean {
  const lost = workers.find(({ id }) => id === worker);
  return workers.some(
    ({ id, host, pid, startedAt }) =>
      id !== worker &&
      host === lost?.host &&
      pid === lost.pid &&
      startedAt > detectedAt &&
      startedAt <= detectedAt + BACK_WITHIN_MS,
  );
}

/** `notDeaths`: incidents of workers whose processes lived on. */
export async function chargedBeyondDeaths(
  engine: Engine,
  id: string,
  notDeaths: ReadonlySet<string>,
): Promise<string[]> {
  const job = await engine.get(id);
  if (!job) return [];
  const { kind, counters, history } = job;
  const incidents = new Set(history.flatMap(({ incident }) => (incident === null ? [] : [incident])));
  const deaths = [...incidents].filter((incident) => !notDeaths.has(incident)).length;
  const charged = Math.max(counters.crashes, counters.blamed);
  return charged <= deaths
    ? []
    : [
        `job ${id} (${kind}) was charged ${counters.crashes} crash(es), ${counters.blamed} alone, and ${deaths} process(es) died that held it`,
      ];
}
