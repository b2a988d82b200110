// What is known about the store's own health: the verdict of a check, what a repair did and lost, and rows that
// contradict each other.

/** UNFINISHED: a time limit ended the check, and the rest is unknown. It never counts as PASSED. */
export type Verdict = "PASSED" | "REPAIRED" | "FAILED" | "UNFINISHED" | "NOT_CHECKED";

/** What an open found out about the store before recovery; a recovery pass by a worker checks nothing. */
export interface StoreFindings {
  readonly integrity: Verdict;
  /** What the store did to itself during this open. Stored with every incident of the pass. */
  readonly summary?: StoreNote;
  /** The check itself; null: there was none. */
  readonly check?: IntegrityCheck | null;
  /** What was repaired; null: nothing needed repair. */
  readonly repair?: Repair | null;
  readonly inconsistencies?: readonly Inconsistency[];
  /** What the store had to correct, or could not correct. Without lines it is not noteworthy. */
  readonly notice?: StoreNote;
  /** How long all of this took, including the wait for another process's start-up. */
  readonly tookMs?: number;
}

/**
 * What a store reports about itself, as the store words it: the engine stores and shows it, and bases no decision on
 * it.
 */
export interface StoreNote {
  /** For the text of a report. */
  readonly lines: readonly string[];
  /** For its JSON, under these names. */
  readonly facts: Readonly<Record<string, string | number | null>>;
}

/** "PASSED (quick)": the verdict with the depth of the check behind it, as logged and stored with an incident. */
export function integrityText({ integrity, check }: Pick<StoreFindings, "integrity" | "check">): string {
  return check ? `${integrity} (${check.depth})` : integrity;
}

/** Parses the output of `integrityText`. Incidents of earlier versions have no depth. */
export function parseIntegrity(text: string): { readonly integrity: string; readonly depth: CheckDepth | null } {
  const [, integrity, depth] = /^(.*?)(?: \((quick|full)\))?$/.exec(text)!;
  return { integrity: integrity!, depth: (depth as CheckDepth | undefined) ?? null };
}

export const NOTHING_CHECKED: StoreFindings = { integrity: "NOT_CHECKED" };

/**
 * An open that found something about the store itself. Stored separately from incidents, which are about deaths; only
 * the latest is kept.
 */
export interface Opening {
  /** The recovery pass of that open: its incidents, if any, carry the same id. */
  readonly recovery: string;
  readonly startedAt: number;
  readonly completedAt: number;
  readonly findings: StoreFindings;
}

/**
 * Whether an open has to be stored and reported although no worker had died. A sound store with nothing to correct is
 * not noteworthy.
 */
export function isNoteworthy(findings: StoreFindings): boolean {
  const { integrity, repair, inconsistencies, notice } = findings;
  return (
    (integrity !== "PASSED" && integrity !== "NOT_CHECKED") ||
    Boolean(repair) ||
    (inconsistencies?.length ?? 0) > 0 ||
    (notice?.lines.length ?? 0) > 0
  );
}

/** What an open does about a damaged store. */
export type RepairMode = "off" | "reindex" | "auto";

/** quick: the structure of every page. full: also that indexes agree with their tables. */
export type CheckDepth = "quick" | "full";

export interface IntegrityCheck {
  readonly verdict: "PASSED" | "FAILED" | "UNFINISHED";
  readonly depth: CheckDepth;
  /** At most 100. */
  readonly findings: readonly string[];
  readonly tookMs: number;
}

/** What one step of a repair did. */
export interface RepairStep {
  readonly step: "set-wal-aside" | "reindex" | "vacuum" | "salvage";
  readonly ok: boolean;
  readonly detail: string;
}

export interface Repair {
  readonly steps: readonly RepairStep[];
  /** True if a full check after it found nothing. */
  readonly sound: boolean;
  /** What is still wrong. */
  readonly findings: readonly string[];
  /** What the salvage copied; null: it was not needed, or not allowed. */
  readonly salvage: Salvage | null;
}

export interface Salvage {
  /** Where the damaged file is kept. */
  readonly keptAs: string;
  /** The newest change that survived, in ms of the store's clock; null: none did. */
  readonly recoveryPointAt: number | null;
  /** Rows copied and rows known to be lost, by table; `lost` null: not countable. */
  readonly tables: readonly { readonly table: string; readonly rows: number; readonly lost: number | null }[];
  /** Ids of jobs that survived only in part: an input, a step or their history is missing. */
  readonly partial: readonly string[];
  /** Ids of jobs whose row is lost although something else still names them. */
  readonly lost: readonly string[];
}

/** Checks and repairs a store that may be too damaged to be opened. */
export interface StoreDoctor {
  /** A full check of the content. `readOnly`: not even an interrupted repair is finished. */
  check(options: { readonly readOnly: boolean }): Promise<IntegrityCheck>;
  /** Refused while another process uses the store. */
  repair(options: RepairOptions): Promise<Repair>;
}

export interface RepairOptions {
  /** Whether what can't be repaired may be salvaged into a new store: the old one is kept, but data may be lost. */
  readonly salvage: boolean;
  readonly onStep?: (step: RepairStep) => void;
  readonly onProgress?: (what: string) => void;
}

/** Rows that contradict each other. */
export interface Inconsistency {
  readonly what:
    | "running-without-owner"
    | "gone-worker-holds-jobs"
    | "orphan-steps"
    | "orphan-history"
    | "orphan-logs"
    | "counter-disagrees"
    | "corrupt-content"
    | "held-without-door"
    | "door-without-held"
    | "slot-disagrees"
    | "key-stuck"
    | "end-disagrees"
    | "orphan-extras"
    | "lock-without-worker";
  /** One sentence for people. */
  readonly detail: string;
  /** What it is about: ids of jobs, workers, kinds or locks; at most 20. */
  readonly names: readonly string[];
  readonly count: number;
}

/** A full check together with contradictions found in the rows. */
export interface IntegrityReport extends IntegrityCheck {
  readonly inconsistencies: readonly Inconsistency[];
}
