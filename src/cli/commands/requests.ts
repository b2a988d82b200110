// `outlive requests`: requests by kind and key, open circuits and disabled endpoints. `outlive requests unknown`: those that were sent and have no known outcome.
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobInfo } from "../../job/job.ts";
import type { KeyState } from "../../job/limits.ts";
import type { KindCounts } from "../../stores/port.ts";
import type { Register } from "../main.ts";
import { type Column, grid, type Pen } from "../terminal.ts";
import { ago, oneLine, thousands } from "../words.ts";

/** How many requests in flight are read, to say to which keys they go, and how many of unknown outcome are listed. */
const MAX_READ = 1_000;

export const requestsCommand: Register = (program, run) => {
  program
    .command("requests")
    .argument("[which]", "unknown: requests that were sent and have no known outcome")
    .description("HTTP requests: in flight by kind and key, waiting, circuits and disabled endpoints")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [which] = command.args as [string?];
        const engine = await attach();
        if (which === "unknown") {
          const requests = await unknownOnes(engine);
          return terminal.answer({ requests }, () => unknownLines(requests, terminal));
        }
        if (which !== undefined)
          throw new OutliveError(
            ErrorCode.optionInvalid,
            `There is no list of requests named ${JSON.stringify(which)}.`,
            "Use: outlive requests, or outlive requests unknown",
          );
        const kinds = await overview(engine);
        terminal.answer({ kinds }, () => overviewLines(kinds, terminal));
      }),
    );
};

interface Overview {
  readonly kind: string;
  readonly inFlight: number;
  readonly waiting: number;
  readonly held: number;
  readonly dead: number;
  /** Asked about and not decided. */
  readonly asked: number;
  readonly paused: boolean;
  /** Of the requests in flight, at most 1,000. */
  readonly inFlightByKey: Readonly<Record<string, number>>;
  /** Keys that are held off or paused. */
  readonly stopped: readonly Pick<KeyState, "key" | "paused" | "heldOffUntil">[];
}

/** A kind of request has three kinds of callbacks. */
function requestKinds(counts: readonly KindCounts[]): readonly KindCounts[] {
  const names = new Set(counts.map(({ kind }) => kind));
  return counts.filter(({ kind }) => ["response", "error", "unknown"].every((which) => names.has(`${kind}.${which}`)));
}

async function overview(engine: Engine): Promise<readonly Overview[]> {
  const counts = await engine.counts();
  const byKind = new Map(counts.map((one) => [one.kind, one]));
  return Promise.all(
    requestKinds(counts).map(async ({ kind, running, ready, delayed, held, dead, paused }) => {
      const { jobs } = await engine.list({ kind, state: "running", limit: MAX_READ });
      const keys = jobs.flatMap((job) => job.keys.filter(({ limit }) => limit === kind).map(({ key }) => key));
      const byKey = Map.groupBy(keys, (key) => key);
      // A store that can't list single keys has none that are paused.
      const stopped = await engine.limits.list(kind).catch(() => []);
      const asked = byKind.get(`${kind}.unknown`)!;
      return {
        kind,
        inFlight: running,
        waiting: ready + delayed,
        held,
        dead,
        asked: asked.ready + asked.delayed + asked.held + asked.running,
        paused,
        inFlightByKey: Object.fromEntries([...byKey].map(([key, of]) => [key, of.length])),
        stopped: stopped
          .filter((one) => one.paused !== null || one.heldOffUntil !== null)
          .map(({ key, paused: pause, heldOffUntil }) => ({ key, paused: pause, heldOffUntil })),
      };
    }),
  );
}

function overviewLines(kinds: readonly Overview[], pen: Pen): string {
  if (kinds.length === 0) return "The store has no kinds of requests.";
  const columns: readonly Column[] = [
    { title: "KIND", shrinkTo: 16 },
    { title: "IN FLIGHT", align: "right" },
    { title: "WAITING", align: "right" },
    { title: "HELD", align: "right" },
    { title: "ASKED", align: "right" },
    { title: "DEAD", align: "right" },
  ];
  const table = grid(
    pen,
    columns,
    kinds.map((one) => [
      one.paused ? `${one.kind} (paused)` : one.kind,
      ...[one.inFlight, one.waiting, one.held, one.asked, one.dead].map(thousands),
    ]),
  );
  const keys = kinds.flatMap(({ kind, inFlightByKey }) =>
    Object.entries(inFlightByKey).map(([key, count]) => `${kind} ${oneLine(key)}: ${thousands(count)} in flight`),
  );
  const stopped = kinds.flatMap(({ kind, stopped: of }) =>
    of.map((one) => `${kind} ${oneLine(one.key)}: ${whyStopped(one)}`),
  );
  return [...table, ...keys, ...stopped].join("\n");
}

function whyStopped({ paused, heldOffUntil }: Overview["stopped"][number]): string {
  if (paused) return `paused, ${oneLine(paused.reason)}`;
  return `held off until ${new Date(heldOffUntil!).toISOString()}`;
}

interface UnknownOne {
  readonly jobId: string;
  readonly kind: string;
  /** asked: `onUnknown` has not decided. failed: it ended so. */
  readonly is: "asked" | "failed";
  readonly at: number;
  readonly message: string | null;
}

async function unknownOnes(engine: Engine): Promise<readonly UnknownOne[]> {
  const kinds = requestKinds(await engine.counts());
  const found = await Promise.all(
    kinds.map(async ({ kind }) => {
      const lists = ["queued", "running", "dead"] as const;
      const asked = await Promise.all(
        lists.map((state) => engine.list({ kind: `${kind}.unknown`, state, limit: MAX_READ })),
      );
      const dead = await engine.list({ kind, state: "dead", limit: MAX_READ });
      return [
        ...asked.flatMap(({ jobs }) => jobs.map((job) => unknownOne(job, kind, "asked"))),
        ...dead.jobs
          .filter(({ error }) => error?.name === "RequestUnknown")
          .map((job) => unknownOne(job, kind, "failed")),
      ];
    }),
  );
  return found.flat();
}

function unknownOne(job: JobInfo, kind: string, is: UnknownOne["is"]): UnknownOne {
  const jobId = is === "asked" ? job.id.slice(0, job.id.lastIndexOf(".unknown.")) : job.id;
  return { jobId, kind, is, at: job.finishedAt ?? job.createdAt, message: job.error?.message ?? null };
}

function unknownLines(requests: readonly UnknownOne[], pen: Pen): string {
  if (requests.length === 0) return "No request has an unknown outcome.";
  const columns: readonly Column[] = [
    { title: "REQUEST" },
    { title: "KIND", shrinkTo: 12 },
    { title: "IS" },
    { title: "SINCE" },
  ];
  const rows = requests.map(({ jobId, kind, is, at }) => [jobId, kind, is, ago(Date.now() - at)]);
  return [...grid(pen, columns, rows), "Send one again: outlive retry ID. The receiver may then act twice."].join("\n");
}
