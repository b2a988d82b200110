// Mending a damaged file in place.
import type { Clock } from "../../core/clock.ts";
import type { Repair, RepairStep } from "../../core/integrity.ts";
import { checkOpen } from "./check-open.ts";
import { Database } from "./database.ts";

export async function repairFile(
  path: string,
  _allow: { readonly salvage: boolean },
  deps: { readonly clock: Clock; readonly tell?: (step: RepairStep) => void },
): Promise<Repair> {
  const steps: RepairStep[] = [];
  let findings: readonly string[] = [];
  for (const step of ["reindex", "vacuum"] as const) {
    try {
      const db = new Database({ path, mustExist: true });
      try {
        db.exec(step === "reindex" ? "REINDEX" : "VACUUM");
        findings = checkOpen(db, "full");
      } finally {
        db.close();
      }
      steps.push({ step, ok: findings.length === 0, detail: `${findings.length} finding(s) left` });
    } catch (thrown) {
      findings = [(thrown as Error).message];
      steps.push({ step, ok: false, detail: (thrown as Error).message });
    }
    deps.tell?.(steps.at(-1)!);
    if (findings.length === 0) break;
  }
  return { steps, sound: findings.length === 0, findings, salvage: null };
}
