// `npm run sim`: the command line of the simulator (usage.ts). Exit 1 if any promise was broken, an innocent was blamed in a storm, or a mutant was not found;
// with the story of what happened and the command that replays it.
import { availableParallelism } from "node:os";
import { parseArgs, type ParseArgsConfig } from "node:util";
import { type AtomicCampaign, runAtomic } from "./atomic.ts";
import { type Campaign, campaignOf, NO_CAMPAIGN, runCampaign, together } from "./campaign.ts";
import { exhaust } from "./exhaustive/exhaust.ts";
import { FLOOR_MUTANTS, type FloorCampaign, huntFloors, runFloors } from "./floors.ts";
import { type History, simulate } from "./history.ts";
import { type Isolation, runIsolation } from "./isolation.ts";
import { MUTANTS } from "./mutants/index.ts";
import type { Mutant } from "./mutants/mutant.ts";
import { type Caught, hunt } from "./mutation.ts";
import { inParallel, report, reportDone } from "./parallel.ts";
import { shrink } from "./shrink.ts";
import { type CollectionCampaign, huntCollections, runCollections } from "./collections/campaign.ts";
import { COLLECTION_MUTANTS } from "./collections/mutants.ts";
import { huntRequests, type RequestCampaign, runRequestHistories } from "./requests/campaign.ts";
import { REQUEST_MUTANTS } from "./requests/mutants.ts";
import { huntSchedules, runSchedules, type ScheduleCampaign } from "./schedules/campaign.ts";
import { OPERATIONS_MUTANTS } from "./operations/mutants.ts";
import { huntOperations } from "./operations/world.ts";
import { SCHEDULE_MUTANTS } from "./schedules/mutants.ts";
import { runStorm, type Storm } from "./storm.ts";
import { USAGE } from "./usage.ts";
import { WORKLOADS, workloadsNamed } from "./workloads/index.ts";
import type { WorldOptions } from "./world/world.ts";

const { values } = parsed({
  options: {
    help: { type: "boolean", default: false },
    seeds: { type: "string", default: "300" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    mutants: { type: "boolean", default: false },
    mutant: { type: "string", multiple: true, default: [] },
    workload: { type: "string", multiple: true, default: [] },
    budget: { type: "string", default: "500" },
    focus: { type: "boolean", default: false },
    exhaustive: { type: "boolean", default: false },
    storm: { type: "boolean", default: false },
    isolation: { type: "boolean", default: false },
    schedules: { type: "boolean", default: false },
    days: { type: "string", default: "365" },
    requests: { type: "boolean", default: false },
    collections: { type: "boolean", default: false },
    floors: { type: "boolean", default: false },
    store: { type: "string", default: "sqlite" },
    shrink: { type: "boolean", default: false },
    processes: { type: "string", default: String(availableParallelism()) },
    json: { type: "boolean", default: false },
    verbose: { type: "boolean", default: false },
  },
});

if (values.help) {
  process.stdout.write(USAGE);
  process.exit();
}

/** Stories of at most this many violations are printed. */
const MAX_PRINTED = 3;
/** How many seeds a child plays before it reports its progress, and all children together before the parent prints it. */
const REPORTED_EVERY = 20;
const PROGRESS_EVERY = 1_000;
const processes = Math.max(1, whole(values.processes, "processes"));
// A name that is not there would be a hunt for nothing, which finds everything.
const known = [
  ...MUTANTS,
  ...SCHEDULE_MUTANTS,
  ...OPERATIONS_MUTANTS,
  ...REQUEST_MUTANTS,
  ...COLLECTION_MUTANTS,
  ...FLOOR_MUTANTS,
].map(({ name }) => name);
const strangers = values.mutant.filter((name) => !known.includes(name));
if (strangers.length > 0) usageError(`--mutant ${strangers.join(", ")}: use ${known.join(", ")}`);

const unknown = values.workload.filter((name) => workloadsNamed([name]).length === 0);
if (unknown.length > 0)
  usageError(`--workload ${unknown.join(", ")}: use ${WORKLOADS.map(({ name }) => name).join(", ")}`);

if (values.store !== "sqlite" && values.store !== "atomic") usageError(`--store ${values.store}: use sqlite or atomic`);

if (values.store === "atomic") printBroken(await runAtomic(whole(values.from, "from"), whole(values.seeds, "seeds")));
else if (values.schedules)
  printBroken(await runSchedules(whole(values.from, "from"), whole(values.seeds, "seeds"), whole(values.days, "days")));
else if (values.requests)
  printBroken(await runRequestHistories(whole(values.from, "from"), whole(values.seeds, "seeds")));
else if (values.collections)
  printBroken(await runCollections(whole(values.from, "from"), whole(values.seeds, "seeds")));
else if (values.floors) printBroken(runFloors(whole(values.from, "from"), whole(values.seeds, "seeds")));
else if (values.exhaustive) printExhaustive(await exhaust());
else if (values.storm) printBroken(await runStorm(whole(values.seeds, "seeds"), chosenMutant()));
else if (values.isolation) printBroken(await runIsolation(whole(values.seeds, "seeds"), chosenMutant()));
else if (values.seed !== undefined) await one(whole(values.seed, "seed"));
else if (values.mutants) await mutants(whole(values.budget, "budget"));
else await many(whole(values.from, "from"), whole(values.seeds, "seeds"));

async function many(from: number, seeds: number): Promise<void> {
  const planted = worldOptions();
  if (processes > 1 && seeds > 1) {
    const share = Math.ceil(seeds / processes);
    const parts = Array.from({ length: processes }, (_, i) => ({
      from: from + i * share,
      seeds: Math.min(share, seeds - i * share),
    })).filter((part) => part.seeds > 0);
    const sums = await inParallel<Campaign>(
      parts.map((part) => ["--from", `${part.from}`, "--seeds", `${part.seeds}`, ...worldArguments()]),
      (done) => printProgress(done, seeds),
    );
    return printCampaign(sums.reduce(together, NO_CAMPAIGN));
  }
  let printed = 0;
  const campaign = await runCampaign({
    ...planted,
    from,
    seeds,
    async onHistory(history, done) {
      if (history.violation !== null && printed++ < MAX_PRINTED) await printViolation(history);
      if (done % REPORTED_EVERY === 0 && !(await reportDone(done))) printProgress(done, seeds);
    },
  });
  if (!report(campaign)) printCampaign(campaign);
}

function printProgress(done: number, seeds: number): void {
  if (done % PROGRESS_EVERY === 0) process.stderr.write(`${done} of ${seeds} seeds\n`);
}

function printCampaign(campaign: Campaign): void {
  if (campaign.violations > 0) process.exitCode = 1;
  if (values.json) return printJson(campaign);
  process.stdout.write(
    `${campaign.seeds} seeds, ${campaign.simulatedHours} simulated hours: ${campaign.violations} violations\n` +
      `${campaign.takeovers} takeovers, ${campaign.staleWrites} stale writes refused, ${campaign.ambiguous} ambiguous answers, ${campaign.void} void seeds\n`,
  );
}

/** The failing seed, shrunk, as a story. */
async function printViolation(failed: History): Promise<void> {
  const { history, tries } = await shrink(failed, worldOptions());
  const command = ["npm run sim --", "--seed", failed.seed, ...worldArguments()].join(" ");
  process.stderr.write(
    `\nseed ${failed.seed}: ${failed.violation}\n` +
      `shrunk in ${tries} tries from ${failed.strikes.length} faults to ${history.strikes.length} (${history.strikes.join("; ")}), ` +
      `from ${failed.jobs.length} jobs to ${history.jobs.length}, from ${failed.events} events to ${history.events}:\n` +
      `${history.story.join("\n")}\n` +
      `replay it: ${command} --verbose      shrink it: ${command} --shrink\n\n`,
  );
}

async function one(seed: number): Promise<void> {
  const options = worldOptions();
  let history = await simulate(seed, { ...options, keepLines: values.verbose ? 1_000_000 : 80 });
  if (history.violation !== null) process.exitCode = 1;
  if (history.violation !== null && values.shrink) ({ history } = await shrink(history, options));
  if (values.verbose || history.violation !== null) process.stdout.write(`${history.story.join("\n")}\n`);
  process.stdout.write(
    `seed ${seed}: ${history.violation ?? "every promise was kept"} (${history.digest.slice(0, 16)})\n`,
  );
  if (values.json) printJson(campaignOf(history));
}

function chosenMutant(): Mutant | undefined {
  return MUTANTS.find(({ name }) => name === values.mutant[0]);
}

/** The bug that these seeds are run with, if any, and what their programs have, if it is not drawn. */
function worldOptions(): WorldOptions {
  const mutant = chosenMutant();
  const { workload: workloads } = values;
  return { ...(mutant && { mutant }), ...(workloads.length > 0 && { profile: { workloads } }) };
}

function worldArguments(): readonly string[] {
  return [
    ...values.mutant.slice(0, 1).flatMap((name) => ["--mutant", name]),
    ...values.workload.flatMap((name) => ["--workload", name]),
  ];
}

async function mutants(budget: number): Promise<void> {
  const chosen = MUTANTS.filter(({ name }) => values.mutant.length === 0 || values.mutant.includes(name));
  const caught = await huntAll(
    chosen.map(({ name }) => name),
    budget,
  );
  if (report(caught)) return;
  // Their histories are short, and most are found by the first: they need no separate processes.
  const isAsked = ({ name }: { readonly name: string }): boolean =>
    values.mutant.length === 0 || values.mutant.includes(name);
  printMutants([
    ...caught,
    ...(await huntSchedules(budget, SCHEDULE_MUTANTS.filter(isAsked))),
    ...(await huntOperations(budget, OPERATIONS_MUTANTS.filter(isAsked))),
    ...(await huntRequests(Math.min(budget, 60), REQUEST_MUTANTS.filter(isAsked))),
    ...(await huntCollections(Math.min(budget, 20), COLLECTION_MUTANTS.filter(isAsked))),
    ...huntFloors(Math.min(budget, 20), FLOOR_MUTANTS.filter(isAsked)),
  ]);
}

function printMutants(caught: readonly Caught[]): void {
  const missed = caught.filter(({ seed }) => seed === null).map(({ mutant }) => mutant);
  if (missed.length > 0) process.exitCode = 1;
  for (const { mutant, seed, seeds, violation } of caught)
    process.stdout.write(
      `${mutant}: ${seed === null ? "MISSED" : `caught by seed ${seeds}`}  ${violation?.split("\n", 1)[0] ?? ""}\n`,
    );
  const result = { mutants: caught.length, caught: caught.length - missed.length, missed };
  if (values.json) printJson(result);
  else
    process.stdout.write(
      `${result.caught} of ${result.mutants} mutants were caught; missed: ${missed.join(", ") || "none"}\n`,
    );
}

async function huntAll(names: readonly string[], budget: number): Promise<readonly Caught[]> {
  if (processes > 1) {
    const lists = Array.from({ length: processes }, (_, i) => names.filter((_name, at) => at % processes === i));
    const args = lists
      .filter((list) => list.length > 0)
      .map((list) => [
        "--mutants",
        "--budget",
        `${budget}`,
        ...(values.focus ? ["--focus"] : []),
        ...list.flatMap((name) => ["--mutant", name]),
      ]);
    return (await inParallel<readonly Caught[]>(args)).flat();
  }
  const caught: Caught[] = [];
  for (const mutant of MUTANTS)
    if (names.includes(mutant.name)) caught.push(await hunt(mutant, 1, budget, values.focus));
  return caught;
}

function printExhaustive(result: Awaited<ReturnType<typeof exhaust>>): void {
  const { story, ...counts } = result;
  if (result.violations > 0) {
    process.exitCode = 1;
    process.stderr.write(`${story.join("\n")}\n`);
  }
  printJson(counts);
}

function printBroken<
  T extends
    | Storm
    | Isolation
    | AtomicCampaign
    | ScheduleCampaign
    | RequestCampaign
    | CollectionCampaign
    | FloorCampaign,
>({ broken, ...counts }: T): void {
  if (broken.length > 0) process.exitCode = 1;
  for (const one of broken.slice(0, MAX_PRINTED)) process.stderr.write(`${one}\n`);
  printJson(counts);
}

function printJson(result: unknown): void {
  process.stdout.write(`${JSON.stringify(result)}\n`);
}

function whole(text: string, option: string): number {
  if (!/^\d{1,9}$/.test(text)) usageError(`--${option} ${text}: use a whole number`);
  return Number(text);
}

/** What this command understands, or the one line that says what it does not. */
function parsed<const T extends ParseArgsConfig>(config: T): ReturnType<typeof parseArgs<T>> {
  try {
    return parseArgs(config);
  } catch (thrown) {
    return usageError((thrown as Error).message);
  }
}

/** Nothing has begun. */
function usageError(message: string): never {
  process.stderr.write(`${message}\nnpm run sim -- --help lists the options.\n`);
  process.exit(1);
}
