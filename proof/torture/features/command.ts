// The command line of the rig for waiting and keys.
import { mkdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import pg from "pg";
import { cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import { wholeNumber } from "../arguments.ts";
import { plantsNamed } from "./plants.ts";
import type { Outcome, Place, Scenario, Sizes } from "./stage.ts";

/** Violations beyond this many of one law say nothing new. */
const MAX_PRINTED = 10;
/** From this many kills on, scenarios without kills have their full size. */
const FULL_SIZE_KILLS = 100;
const ENDED_WITHIN_MS = 120_000;

export async function features(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      features: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      scenario: { type: "string" },
      kills: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
      workers: { type: "string" },
      keys: { type: "string" },
      plant: { type: "string" },
      "ended-within": { type: "string", default: String(ENDED_WITHIN_MS) },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const { store } = values;
  if (store !== "sqlite" && store !== "postgres" && store !== "redis")
    throw new Error(`--store ${store}: use sqlite, postgres or redis.`);
  const kills = wholeNumber(values.kills, "kills");
  const seed = wholeNumber(values.seed, "seed");
  const sizes: Sizes = {
    kills,
    seed,
    scale: Math.min(1, kills / FULL_SIZE_KILLS),
    endedWithinMs: wholeNumber(values["ended-within"], "ended-within"),
    ...(values.workers !== undefined && { workers: wholeNumber(values.workers, "workers") }),
    ...(values.keys !== undefined && { keys: wholeNumber(values.keys, "keys") }),
  };
  const plants = plantsNamed(values.plant);
  // The kinds are declared as they are loaded, and the plants are among what they declare.
  if (plants.length > 0) process.env["OUTLIVE_FEATURES_PLANT"] = plants.join();
  const { scenariosNamed } = await import("./scenarios.ts");
  const { together } = await import("./audit.ts");
  const { chosen, notRun } = scenariosNamed(values.scenario, store);

  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  await using end = new AsyncDisposableStack();
  let server: PostgresServer | null = null;
  if (store === "postgres") {
    server = await PostgresServer.create({ fsync: true });
    const started = server;
    end.defer(() => started.destroy());
  }
  const redis = store === "redis" ? await RedisServer.create({ fsync: "always" }) : null;
  if (redis) end.defer(() => redis.destroy());
  const outcomes = new Map<string, Outcome>();
  for (const scenario of chosen) {
    const isAlone = values.scenario !== undefined;
    const outcome = await play(scenario, await placeFor(scenario, scratch.folder, server, redis), sizes, isAlone);
    outcomes.set(scenario.name, outcome);
    report(scenario.name, outcome);
  }
  const findings = together([...outcomes.values()].map((outcome) => outcome.findings));
  const counts = Object.fromEntries(Object.entries(findings).map(([law, broken]) => [law, broken.length]));
  const isSound = Object.values(counts).every((count) => count === 0);
  const sum = (of: (outcome: Outcome) => number): number =>
    [...outcomes.values()].reduce((all, one) => all + of(one), 0);
  const figures = { kills: sum((one) => one.kills), enqueued: sum((one) => one.enqueued) };
  if (values.json) {
    const scenarios = Object.fromEntries(
      [...outcomes].map(([name, one]) => [name, { kills: one.kills, enqueued: one.enqueued, ...one.figures }]),
    );
    const planted = plants.length > 0 ? { plants } : {};
    process.stdout.write(`${JSON.stringify({ store, seed, ...figures, ...counts, scenarios, notRun, ...planted })}\n`);
  } else
    process.stdout.write(
      `${figures.kills} kills, ${figures.enqueued} jobs\n${isSound ? "Every promise held.\n" : `broken: ${JSON.stringify(counts)}\n`}`,
    );
  if (!isSound) scratch.keep();
  return isSound;
}

/** Among others, all but the first have half of the kills. */
function play(scenario: Scenario, place: Place, sizes: Sizes, isAlone: boolean): Promise<Outcome> {
  const kills = isAlone || scenario.name === "mixed" ? sizes.kills : Math.ceil(sizes.kills / 2);
  process.stderr.write(`${scenario.name}\n`);
  return scenario.run(place, { ...sizes, kills });
}

/** A file, a database or a name of its own. */
async function placeFor(
  { name }: Scenario,
  parent: string,
  server: PostgresServer | null,
  redis: RedisServer | null,
): Promise<Place> {
  const folder = join(parent, name);
  mkdirSync(folder);
  if (redis) return { folder, url: `${redis.url()}?store=${name}` };
  if (!server) return { folder, url: `sqlite:${join(folder, "jobs.db")}` };
  const client = new pg.Client({ connectionString: server.url() });
  await client.connect();
  await client.query(`CREATE DATABASE "${name}"`);
  await client.end();
  return { folder, url: server.url(name) };
}

function report(name: string, { findings, kills, enqueued, figures = {} }: Outcome): void {
  const measured = Object.entries(figures).map(([figure, value]) => `, ${figure} ${value}`);
  process.stderr.write(`${name}: ${kills} kills, ${enqueued} jobs${measured.join("")}\n`);
  for (const [law, broken] of Object.entries(findings))
    for (const one of (broken as readonly string[]).slice(0, MAX_PRINTED))
      process.stderr.write(`${name}: ${law}: ${one}\n`);
}
