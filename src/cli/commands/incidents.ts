// `outlive incidents` and `outlive incident ID`: deaths, and what was done about each.
import type { IncidentSummary } from "../../core/incident.ts";
import { humanMs } from "../../core/duration.ts";
import { wholeNumber } from "../flags.ts";
import { grid, type Pen } from "../grid.ts";
import type { Register } from "../main.ts";
import { noSuchIncident } from "../not-found.ts";
import { ago, stamp, thousands } from "../words.ts";
import { withoutText } from "./recover.ts";

export const register: Register = (program, run) => {
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
