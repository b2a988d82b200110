// The command line of the kills at a call.
import { parseArgs } from "node:util";
import { scenariosOf, scratchRoot, wholeNumber } from "../arguments.ts";
import { ensureStrace } from "../strace.ts";
import { isBroken } from "../verdict.ts";
import { complaints, NOT_RUN, runKills } from "./campaign.ts";

export async function killAtCall(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      "kill-at-call": { type: "boolean" },
      /** At most so many kills per scenario. Default: at every call. */
      kills: { type: "string" },
      scenario: { type: "string" },
      /** How many processes are killed at once. */
      lanes: { type: "string", default: "2" },
      json: { type: "boolean", default: false },
    },
  });
  ensureStrace();
  const tally = await runKills({
    scenarios: scenariosOf(values.scenario),
    most: values.kills === undefined ? null : wholeNumber(values.kills, "kills"),
    lanes: Math.max(1, wholeNumber(values.lanes, "lanes")),
    root: scratchRoot(),
    onKill({ scenario, points, verdict }, done) {
      const where = points.map(({ call, nth }) => `${call} ${nth}`).join(", then ");
      if (process.stderr.isTTY) process.stderr.write(`\r${done} kills, now ${scenario} at ${where}  `);
      if (!isBroken(verdict)) return;
      const findings = Object.entries(verdict).flatMap(([kind, found]: [string, readonly string[]]) =>
        found.map((finding) => `  ${kind}: ${finding}`),
      );
      process.stderr.write(`\n${scenario}, killed at ${where}:\n${findings.slice(0, 10).join("\n")}\n`);
    },
  });
  if (process.stderr.isTTY) process.stderr.write("\n");
  const wrong = complaints(tally);
  for (const sentence of wrong) process.stderr.write(`${sentence}\n`);
  const notRun = [
    ...(values.kills === undefined
      ? []
      : [`every call: --kills ${values.kills} spreads so many over those of a scenario`]),
    ...(values.scenario === undefined ? [] : [`other scenarios: --scenario ${values.scenario}`]),
    ...NOT_RUN,
  ];
  process.stdout.write(
    values.json
      ? `${JSON.stringify({ ...tally, notRun })}\n`
      : `${tally.kills} kills in ${Object.keys(tally.scenarios).length} scenarios, ${tally.acknowledged} answers checked: ${tally.lost} lost, ` +
          `${tally.corrupt} corrupt, ${tally.committedTwice} committed twice, ${tally.stuck} stuck, ${tally.survived} ended before their call\n${notRun.map((what) => `not run: ${what}\n`).join("")}`,
  );
  return wrong.length === 0;
}
