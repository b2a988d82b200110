// `npm run sim -- --seeds 300 --json`: the command line of the simulator. Exit 1 if any promise was broken, with the story of the
// first such seed and the command that replays it.
import { parseArgs } from "node:util";
import { runCampaign } from "./campaign.ts";
import { type History, simulate } from "./history.ts";

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "300" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    json: { type: "boolean", default: false },
    verbose: { type: "boolean", default: false },
  },
});

if (values.seed === undefined) await many(whole(values.from, "from"), whole(values.seeds, "seeds"));
else await one(whole(values.seed, "seed"));

async function many(from: number, seeds: number): Promise<void> {
  let told = 0;
  const campaign = await runCampaign({
    from,
    seeds,
    onHistory(history, done) {
      if (history.violation !== null && told++ < 30) tellViolation(history);
      if (process.stderr.isTTY) process.stderr.write(`\r${done} of ${seeds} seeds, ${told} violations `);
    },
  });
  if (process.stderr.isTTY) process.stderr.write("\n");
  if (campaign.violations > 0) process.exitCode = 1;
  if (values.json) return void process.stdout.write(`${JSON.stringify(campaign)}\n`);
  process.stdout.write(
    `${campaign.seeds} seeds, ${campaign.simulatedHours} simulated hours: ${campaign.violations} violations\n` +
      `${campaign.takeovers} takeovers, ${campaign.staleWrites} stale writes refused, ${campaign.ambiguous} ambiguous answers, ${campaign.void} void seeds\n`,
  );
}

async function one(seed: number): Promise<void> {
  const history = await simulate(seed, { keepLines: values.verbose ? 1_000_000 : 80 });
  if (values.verbose) process.stdout.write(`${history.story.join("\n")}\n`);
  if (history.violation !== null) {
    process.exitCode = 1;
    if (!values.verbose) tellViolation(history);
  }
  process.stdout.write(
    `seed ${seed}: ${history.violation ?? "every promise was kept"} (${history.digest.slice(0, 16)})\n`,
  );
}

function tellViolation(history: History): void {
  process.stderr.write(
    `\nseed ${history.seed}: ${history.violation}\n${history.story.join("\n")}\n` +
      `replay it: npm run sim -- --seed ${history.seed} --verbose\n\n`,
  );
}

function whole(text: string, option: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new Error(`--${option} ${text}: use a whole number`);
  return Number(text);
}
