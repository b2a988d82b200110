// The command line of the power losses: record, lose, judge, and say how to see the first broken states again.
import { mkdtempSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { scenariosOf, scratchRoot, wholeNumber } from "../arguments.ts";
import type { Scenario } from "../scenarios/scenario.ts";
import type { Durability } from "../scenarios/stage.ts";
import { ensureStrace } from "../strace.ts";
import { isBroken } from "../verdict.ts";
import { namesAgain, recordAgain } from "./again.ts";
import { isClean, runCampaign, type State } from "./campaign.ts";
import { load, record, type Recording } from "./recording.ts";

/** So many broken states are printed in full. */
const TOLD = 5;

export async function powerLoss(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      "power-loss": { type: "boolean" },
      states: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
      json: { type: "boolean", default: false },
      scenario: { type: "string" },
      /** So many processes go on after a first power loss, and the states are those of a second. */
      again: { type: "string" },
      /** A recording that was kept, to be lost again. */
      recording: { type: "string" },
      /** One state of it alone, whose files are then left for a look. */
      state: { type: "string" },
      /** The controls: both must be found out. */
      durability: { type: "string", default: "full" },
      plant: { type: "string" },
    },
  });
  const [states, seed] = [wholeNumber(values.states, "states"), wholeNumber(values.seed, "seed")];
  const { durability, plant } = values;
  if (durability !== "full" && durability !== "relaxed") throw new Error("--durability: use full or relaxed.");
  if (plant !== undefined && plant !== "ignored-syncs") throw new Error("--plant: use ignored-syncs.");
  const scenarios = scenariosOf(values.scenario);
  const kept = values.recording === undefined ? undefined : resolve(values.recording);
  const root = scratchRoot();
  const folder = kept ?? mkdtempSync(join(root, "outlive-recordings-"));
  const again = values.again === undefined ? 0 : wholeNumber(values.again, "again");
  const recordings =
    kept === undefined
      ? await recordAll(scenarios, { durability, folder, again, seed })
      : loadAll(scenarios, folder, again);

  let broken = 0;
  const tally = await runCampaign({
    recordings,
    states,
    seed,
    root,
    ignoreSyncs: plant === "ignored-syncs",
    ...(values.state === undefined
      ? {}
      : { only: { number: wholeNumber(values.state, "state"), filesTo: `${folder}/state-${values.state}` } }),
    onState(state, done) {
      if (isBroken(state.verdict) && broken++ < TOLD) tell(state);
      if (process.stderr.isTTY) process.stderr.write(`\r${done} of ${states} states, ${broken} broken `);
    },
  });
  if (process.stderr.isTTY) process.stderr.write("\n");
  if (broken > 0) {
    const line = [...args.filter((arg) => arg !== "--json"), ...(kept === undefined ? ["--recording", folder] : [])];
    process.stderr.write(
      `see it again: npm run torture -- ${line.join(" ")}\n` +
        `with --state N one of them alone; its files are then in ${folder}/state-N\n`,
    );
  } else if (kept === undefined) rmSync(folder, { recursive: true, force: true });
  // A scenario that can't be recorded ends the run with an error, so nothing is ever left out here.
  const notRun: string[] = [];
  process.stdout.write(
    values.json
      ? `${JSON.stringify({ ...tally, seed, notRun })}\n`
      : `${tally.states} power losses (${tally.exposed} with something unsynced) in ${tally.scenarios} scenarios (seed ${seed}), ${tally.acknowledged} answers checked: ` +
          `${tally.lost} lost, ${tally.corrupt} corrupt, ${tally.committedTwice} committed twice, ${tally.stuck} stuck\n`,
  );
  return isClean(tally);
}

interface RecordOptions {
  readonly durability: Durability;
  readonly folder: string;
  /** How many processes go on after a first power loss; 0: none, the states are of the first. */
  readonly again: number;
  readonly seed: number;
}

async function recordAll(
  scenarios: readonly Scenario[],
  { durability, folder, again, seed }: RecordOptions,
): Promise<Recording[]> {
  try {
    ensureStrace();
    const recordings: Recording[] = [];
    for (const scenario of scenarios) recordings.push(await record(scenario, durability, folder));
    if (again === 0) return recordings;
    return await recordAgain(recordings, { count: again, seed, durability, parent: folder });
  } catch (thrown) {
    rmSync(folder, { recursive: true, force: true });
    throw thrown;
  }
}

function loadAll(scenarios: readonly Scenario[], folder: string, again: number): Recording[] {
  const names = scenarios.map(({ name }) => name);
  const wanted = again === 0 ? names : namesAgain(names, again).map(({ name }) => name);
  return wanted.map((name) => load(join(folder, name), name));
}

function tell({ number, scenario, moment, fate, verdict }: State): void {
  const lines = Object.entries(verdict).flatMap(([kind, findings]: [string, readonly string[]]) =>
    findings.slice(0, 5).map((finding) => `  ${kind}: ${finding}`),
  );
  process.stderr.write(`\nstate ${number}, ${scenario} after moment ${moment} (${fate}):\n${lines.join("\n")}\n`);
}
