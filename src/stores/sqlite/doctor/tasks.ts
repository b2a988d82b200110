// What the doctor's child process can be asked for, and what it answers. Plain data: it crosses a process boundary as JSON.
import type { CheckDepth, Salvage } from "../../../core/integrity.ts";

export type Task =
  | { readonly do: "check"; readonly path: string; readonly depth: CheckDepth }
  | { readonly do: "reindex" | "vacuum"; readonly path: string }
  | { readonly do: "salvage"; readonly path: string; readonly now: number }
  | { readonly do: "backup"; readonly path: string; readonly to: string };

/** What each task comes to. */
export interface Answers {
  readonly check: readonly string[];
  readonly reindex: null;
  readonly vacuum: null;
  readonly salvage: SalvageAnswer;
  readonly backup: { readonly findings: readonly string[] };
}

export interface SalvageAnswer {
  readonly salvage: Salvage;
  /** Remarks for people: a log that was left out, pages of no table. */
  readonly remarks: readonly string[];
}

export type Told =
  | { readonly type: "answer"; readonly value: unknown }
  | { readonly type: "progress"; readonly done: number; readonly total: number; readonly what: string }
  | {
      readonly type: "refused";
      /** An OutliveError's parts; without a code it is the message of something unexpected. */
      readonly code: string | null;
      readonly what: string;
      readonly hint: string;
      readonly data: Readonly<Record<string, unknown>>;
    };

export interface Progress {
  readonly done: number;
  readonly total: number;
  readonly what: string;
}
