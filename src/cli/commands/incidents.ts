// `outlive incidents` and `outlive incident ID`: deaths, and what was done about each.
import { humanMs } from "../../job/time.ts";
import type { IncidentSummary } from "../../recovery/incident.ts";
import { wholeNumber } from "../context.ts";
import { grid, type Pen } from "../grid.ts";
import { noSuchIncident } from "../lookup.ts";
import type { Register } from "../main.ts";
import { ago, count, stamp, thousands } from "../words.ts";
import { unrecovered, unrecoveredText, withoutText } from "./recover.ts";

export const incidentsCommand: Register = (program, run) => {
  program
    .command("incidents")
    .description("deaths and what was done about them, newest first")
    .option("--limit <number>", "most incidents on the page, 1 to 1000", wholeNumber(1, 1_000), 20)
    .option("--after <id>", "`next` of the page before")
    .action(
      run(async ({ terminal, attach }, command) => {
        const { limit, after } = command.opts<{ limit: number; after?: string }>();
        const found = await (await attach()).incidents({ limit: limit + 1, ...(after !== undefined && { after }) });
        const incidents = found.slice(0, limit);
        const next = found.length > limit ? incidents.at(-1)!.id : null;
        terminal.answer({ incidents, next }, () =>
          incidents.length === 0
            ? "No worker has died."
            : [
                ...incidentLines(incidents, terminal, Date.now()),
                ...(next === null
                  ? []
                  : ["", terminal.style("dim", `There are more: outlive incidents --after ${next}`)]),
              ].join("\n"),
        );
      }),
    );
  program
    .command("incident")
    .argument("<id>", "the incident's id")
    .description("the report of one death: who, how, what it held, what became of each job")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const report = await (await attach()).report(id);
        if (!report) throw noSuchIncident(id);
        terminal.answer(withoutText(report), () => report.text);
      }),
    );
};

export function incidentLines(incidents: readonly IncidentSummary[], pen: Pen, now: number): string[] {
  return grid(
    pen,
    [
      { title: "INCIDENT" },
      { title: "DETECTED" },
      { title: "", align: "right" },
      { title: "WORKER", shrinkTo: 12 },
      { title: "HOW" },
      { title: "JOBS", align: "right" },
      { title: "RECOVERED", align: "right" },
    ],
    incidents.map(({ id, worker, how, detectedAt, completedAt, jobCount }) => [
      id,
      stamp(detectedAt),
      ago(now - detectedAt),
      worker,
      how,
      thousands(jobCount),
      completedAt === null ? { text: "not finished", ink: "yellow" } : `in ${humanMs(completedAt - detectedAt)}`,
    ]),
  );
}

// `outlive recovery status` and `outlive recovery report`: other spellings, for looking at the latest recovery alone.

export const recoveryCommand: Register = (program, run) => {
  const recovery = program.command("recovery").description("the latest recovery: status, report");
  recovery
    .command("status")
    .description("whether somebody is to be recovered, and how the latest recovery went")
    .action(
      run(async ({ terminal, attach }) => {
        const engine = await attach();
        const wouldRecover = await unrecovered(engine);
        const latest = withoutText(await engine.report());
        terminal.answer({ wouldRecover, latest }, () => {
          const failed = latest?.recoveredJobs.filter(({ success }) => !success).length ?? 0;
          const last = latest
            ? `The latest recovery (${stamp(latest.startedAt)}) dealt with ${count(latest.deadWorkers.length, "dead worker")} and ${count(latest.recoveredJobs.length, "job")}${failed === 0 ? "" : `, ${failed} of them without success`}${latest.completedAt === null ? ", and is not finished" : ""}. Its report: outlive recovery report`
            : "There was no recovery yet: no worker has died.";
          return [unrecoveredText(wouldRecover), "", last].join("\n");
        });
      }),
    );
  recovery
    .command("report")
    .argument("[incident]", "the id of an incident (default: the latest recovery)")
    .description("the report of the latest recovery that found anything, or of one incident")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0];
        const report = await (await attach()).report(id);
        if (!report && id !== undefined) throw noSuchIncident(id);
        terminal.answer(
          { report: withoutText(report) },
          () => report?.text ?? "There was no recovery yet: no worker has died.",
        );
      }),
    );
};
