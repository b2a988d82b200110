// The end of the demo, for people (what was done, what came back, what is in the data, one incident) and for programs (a line).
import { money } from "../torture/audit.ts";
import type { Outcome } from "../torture/run.ts";
import { LEASE_MS } from "../torture/tables.ts";
import { count, millis, paint, type Part, seconds, thousands, wantsColour } from "./screen.ts";

export function jsonLine(outcome: Outcome): string {
  const { store, audit, kills, resumeMs, jobsPerSecond } = outcome;
  const { enqueued, succeeded, lost, committedTwice, quarantined, poison, zombies, staleWritesRejected } = audit;
  const { p50, p99, max } = resumeMs.ofAll;
  return JSON.stringify({
    store,
    enqueued,
    succeeded,
    lost,
    committedTwice,
    quarantined,
    poison,
    kills,
    zombies,
    staleWritesRejected,
    recoveryMs: { p50, p99, max },
    jobsPerSecond,
  });
}

export function printSummary(stream: NodeJS.WriteStream, outcome: Outcome): void {
  const width = stream.isTTY ? Math.max(20, stream.columns - 1) : 200;
  const coloured = wantsColour(stream);
  for (const parts of lines(outcome)) stream.write(`${paint(parts, width, coloured)}\n`);
}

function lines(outcome: Outcome): Part[][] {
  return [...done(outcome), ...back(outcome), ...checked(outcome), ...incident(outcome), ...end(outcome)];
}

function done({ kills, killedAtOnce, poisoned, zombies }: Outcome): Part[][] {
  const lines: Part[][] = [
    [],
    heading("What was done to it"),
    figure(kills, `workers killed with SIGKILL, ${killedAtOnce} of them at the same moment`),
    figure(poisoned, "more killed by the poison job, until it was in quarantine"),
  ];
  for (const { held, frozenAt, wokenAt } of zombies)
    if (wokenAt !== null)
      lines.push(
        figure(
          1,
          `worker frozen with ${count(held, "job")} for ${seconds(wokenAt - frozenAt)}, past its lease of ${seconds(LEASE_MS)}, then woken`,
        ),
      );
  return lines;
}

function back(outcome: Outcome): Part[][] {
  const { recoveredJobs, killsWithJobs, resumeMs, audit } = outcome;
  const { staleWritesRejected, zombies, keptSteps } = audit;
  const pad = " ".repeat(9);
  return [
    [],
    heading("What came back"),
    figure(recoveredJobs, `jobs were held by ${count(killsWithJobs, "killed worker")} and ran again`),
    [pad, ["bold", millis(resumeMs.othersAlive.p50)], " from the kill to the last of them running again (median)"],
    [pad, ["bold", millis(resumeMs.othersAlive.max)], " at worst while others were alive"],
    [pad, ["bold", millis(resumeMs.nobodyLeft.max)], " when all were dead and a new process had to start first"],
    figure(keptSteps, "steps of dead attempts kept, not run again"),
    figure(staleWritesRejected, `stale writes refused, of ${count(zombies, "zombie")}`),
    figure(outcome.jobsPerSecond, "jobs per second all the while, each with work of its own to wait for"),
  ];
}

function checked({ audit, violations }: Outcome): Part[][] {
  const { enqueued, succeeded, quarantined, ledgerRows, balance, verdicts } = audit;
  return [
    [],
    heading("What is in the data"),
    [
      [
        "dim",
        `  ${thousands(enqueued)} jobs enqueued, ${thousands(succeeded)} succeeded, ${quarantined} quarantined; `,
      ],
      ["dim", `${thousands(ledgerRows)} rows in the ledger; ${money(balance)} in the accounts`],
    ],
    ...verdicts.map(({ title, violations: broken }): Part[] =>
      broken.length === 0 ? [["green", "  ✓ "], title] : [["red", "  ✗ "], ["red", title], ` (${broken.length})`],
    ),
    ...violations.slice(0, 20).map((sentence): Part[] => [["red", `  ✗ ${sentence}`]]),
    ...(violations.length > 20 ? [[["red", `  ... and ${violations.length - 20} more`]] as Part[]] : []),
  ];
}

function incident({ report }: Outcome): Part[][] {
  if (report === null) return [];
  return [
    [],
    heading("One of the incidents, as the store keeps it"),
    ...report
      .trimEnd()
      .split("\n")
      .map((line): Part[] => [["dim", "  │ "], line]),
  ];
}

function end({ violations, elapsedMs, seed }: Outcome): Part[][] {
  const took = ["dim", `  (${seconds(elapsedMs)}, --seed ${seed})`] as const;
  return [
    [],
    violations.length === 0
      ? [[["bold", "green"], " Nothing was lost, and nothing was done twice."], took]
      : [[["bold", "red"], ` ${count(violations.length, "thing")} went wrong.`], took],
    [],
  ];
}

function heading(text: string): Part[] {
  return [["bold", ` ${text}`]];
}

function figure(value: number, text: string): Part[] {
  return [["bold", `${thousands(value).padStart(7)}  `], text];
}
