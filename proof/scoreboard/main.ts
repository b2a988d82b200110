// `npm run scoreboard`: starts the servers, plays every experiment with every contender, writes the raw results, and makes
// docs/scoreboard.md and its pictures from them.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { contender } from "./contenders.ts";
import { documentOf, picturesOf } from "./document.ts";
import { type Experiment } from "./experiment.ts";
import { experiments } from "./experiments/index.ts";
import { install, type Installation } from "./installation.ts";
import { isWhole, type Options, readOptions, Usage } from "./options.ts";
import { type Cells, playedAgain, type Results, versionsAfter } from "./results.ts";
import { redisVersion } from "./servers.ts";
import { Stage } from "./stage.ts";

const docs = new URL("../../docs/", import.meta.url);

process.once("SIGINT", () => process.exit(130));
process.once("SIGTERM", () => process.exit(143));
try {
  await main(readOptions(process.argv.slice(2)));
} catch (thrown) {
  if (!(thrown instanceof Usage) && (thrown as { code?: string }).code?.startsWith("ERR_PARSE_ARGS") !== true)
    throw thrown;
  console.error((thrown as Error).message);
  process.exitCode = 2;
}
// Whatever an experiment left behind is killed at the exit and must not delay it.
process.exit();

async function main(options: Options): Promise<void> {
  if (options.render !== null) return write(readResults(options.render)!);
  const results = await measure(options);
  writeFileSync(options.results, `${JSON.stringify(results, null, 2)}\n`);
  for (const line of results.broken) say(`not measured: ${line}`);
  say(`The raw results are in ${options.results}.`);
  if (!options.quick) write(results);
}

async function measure(options: Options): Promise<Results> {
  const earlier = options.quick || isWhole(options) ? undefined : readResults(options.results);
  const installed = install(options.contenders);
  const versions = versionsAfter(earlier?.versions ?? {}, installed.versions, options.contenders);
  const installation = { ...installed, versions };
  const stage = await Stage.create(installation);
  const apart = earlier ? playedAgain(earlier, options) : [];
  const notes = earlier?.notes ?? [];
  const cells: Record<string, Cells> = { ...earlier?.cells };
  const broken: string[] = [];
  for (const experiment of experiments.filter(({ name }) => options.experiments.includes(name))) {
    const from = performance.now();
    const ids = options.contenders.filter((id) => !(id in installation.absent));
    for (const [id, found] of await playAll(stage, experiment, ids, options.quick, broken))
      cells[id] = { ...cells[id], ...found };
    say(`${experiment.name}: ${((performance.now() - from) / 1_000).toFixed(1)} s`);
    // A run takes a quarter of an hour: what was found so far is kept if it is broken off.
    writeFileSync(
      options.results,
      JSON.stringify({ ...(await about(stage, installation)), cells, broken, apart, notes }),
    );
  }
  const found = { ...(await about(stage, installation)), cells, broken, apart, notes };
  await stage.end();
  return found;
}

/** One that breaks off with one contender does not take the others with it. */
async function playAll(
  stage: Stage,
  experiment: Experiment,
  ids: readonly string[],
  quick: boolean,
  broken: string[],
): Promise<ReadonlyMap<string, Cells>> {
  const found = new Map<string, Cells[]>(ids.map((id) => [id, []]));
  const play = async (id: string): Promise<void> => {
    try {
      found.get(id)!.push(await experiment.run(stage, contender(id), quick));
    } catch (thrown) {
      broken.push(`${id}: ${experiment.name}: ${(thrown as Error).message}`);
    }
  };
  const { count, merge } = experiment.rounds ?? { count: 1, merge: ([only = {}]: readonly Cells[]): Cells => only };
  for (let round = 0; round < (quick ? 1 : count); round++) {
    if (experiment.together) await Promise.all(ids.map(play));
    else for (const id of ids) await play(id);
  }
  return new Map([...found].map(([id, each]) => [id, merge(each)]));
}

async function about(
  stage: Stage,
  installation: Installation,
): Promise<Omit<Results, "cells" | "broken" | "apart" | "notes">> {
  return {
    date: new Date().toISOString().slice(0, 10),
    // The average of 15 minutes is about that of the run: what else the machine did belongs to the figures.
    machine: `${cpus().length} cores (${cpus()[0]?.model.trim() ?? "unknown"}), shared, load average ${loadavg()[2]!.toFixed(1)} over the run`,
    nodes: installation.nodes,
    servers: [`PostgreSQL ${await stage.sql("SHOW server_version")}`, redisVersion()],
    versions: installation.versions,
    absent: installation.absent,
  };
}

function readResults(file: string): Results | undefined {
  return existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as Results) : undefined;
}

function write(results: Results): void {
  mkdirSync(new URL("scoreboard/", docs), { recursive: true });
  writeFileSync(new URL("scoreboard.md", docs), documentOf(results));
  for (const [name, svg] of Object.entries(picturesOf(results)))
    writeFileSync(new URL(`scoreboard/${name}`, docs), svg);
  say("docs/scoreboard.md and its pictures are written.");
}

function say(text: string): void {
  process.stderr.write(`${text}\n`);
}
