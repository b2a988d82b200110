// The command line of the kills at a call.
import { parseArgs } from "node:util";
import { scenariosOf, scratchRoot, wholeNumber } from "../arguments.ts";
import { ensureStrace } from "../strace.ts";
import { isBroken } from "../verdict.ts";
import { complaints, NOT_RUN, runKills } from "./campaign.ts";
import { CALLS, type Kill, type Point } from "./site.ts";

export async function killAtCall(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      "kill-at-call": { type: "boolean" },
      /** At most this many kills per scenario. Default: at every call. */
      kills: { type: "string" },
      scenario: { type: "string" },
      /** At this call of one scenario alone: `fsync:17`; with several, one process after the other in the same fixture. */
      at: { type: "string" },
      /** The control: it must be found out. */
      plant: { type: "string" },
      /** How many processes are killed at once. */
      lanes: { type: "string", default: "2" },
      json: { type: "boolean", default: false },
    },
  });
  const { plant } = values;
  if (plant !== undefined && plant !== "forged-answer") throw new Error("--plant: use forged-answer.");
  const scenarios = scenariosOf(values.scenario);
  const at = values.at === undefined ? undefined : pointsOf(values.at);
  if (at && scenarios.length !== 1) throw new Error("--at: name the one scenario, by --scenario.");
  ensureStrace();
  const tally = await runKills({
    scenarios,
    ...(at && { at }),
    ...(plant && { plant }),
    most: values.kills === undefined ? null : wholeNumber(values.kills, "kills"),
    lanes: Math.max(1, wholeNumber(values.lanes, "lanes")),
    root: scratchRoot(),
    onKill(kill, done) {
      if (process.stderr.isTTY) process.stderr.write(`\r${done} kills, now ${kill.scenario} at ${placeOf(kill)}  `);
      if (isBroken(kill.verdict)) tell(kill);
    },
  });
  if (process.stderr.isTTY) process.stderr.write("\n");
  const wrong = complaints(tally);
  for (const sentence of wrong) process.stderr.write(`${sentence}\n`);
  const notRun = [
    ...(values.at === undefined ? [] : [`every call: --at ${values.at} alone`]),
    ...(values.kills === undefined || at
      ? []
      : [`every call: --kills ${values.kills} spreads this many over those of a scenario`]),
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

/** `fsync:17,pwrite64:3` */
function pointsOf(text: string): Point[] {
  return text.split(",").map((one) => {
    const [, call, nth] = /^(\w+):([1-9]\d{0,8})$/.exec(one) ?? [];
    if (call === undefined || !CALLS.includes(call))
      throw new Error(`--at ${one}: use a call and its number, as fsync:17; the calls are ${CALLS.join(", ")}.`);
    return { call, nth: Number(nth) };
  });
}

function placeOf({ points }: Kill): string {
  return points.map(({ call, nth }) => `${call} ${nth}`).join(", then ");
}

function tell(kill: Kill): void {
  const { scenario, points, verdict, left } = kill;
  const findings = Object.entries(verdict).flatMap(([kind, found]: [string, readonly string[]]) =>
    found.map((finding) => `  ${kind}: ${finding}`),
  );
  const at = points.map(({ call, nth }) => `${call}:${nth}`).join(",");
  process.stderr.write(
    `\n${scenario}, killed at ${placeOf(kill)}:\n${findings.slice(0, 10).join("\n")}\n` +
      `  as the kill left it: ${left}\n` +
      `  killed there again: npm run torture -- --kill-at-call --scenario ${scenario} --at ${at}\n`,
  );
}
