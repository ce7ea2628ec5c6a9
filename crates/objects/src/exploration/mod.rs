//! Runs the functions of `protocol`, as they ship, in every order of their steps.
//!
//! A *scenario* is a few programs with a few calls each. The explorer follows every schedule: at
//! each point any program makes its next step, or is killed. It checks each state and each result,
//! and what is left when all programs have ended.
//!
//! A program is ordinary code, which can't be copied in the middle of a call. But all that it knows
//! are the answers of its steps. So the explorer keeps these, and runs a call from its start for
//! each step: the model repeats the answers, executes one more step, and refuses the next. Two
//! schedules that lead to the same tables, memory and answers go on together.
//!
//! | module | contains |
//! |---|---|
//! | `world` | the tables, the registration and the memory of three racks, and what is checked |
//! | `witness` | what a call may return |
//! | `files` | the files of spilled objects |
//! | `trouble` | racks that are away or have lost their memory |
//! | `planted` | bugs that the exploration must find |
//! | `run` | a call that is repeated up to its last step, and makes one more |
//! | `model` | the steps of a program in a world |
//! | `held` | the pins, memory and locks that a program holds |
//! | `transfer` | those of a transfer from another rack |
//! | `calls` | what a program can do |
//! | `explorer` | all schedules of a scenario |
//! | `tests` | the scenarios |

mod calls;
mod explorer;
mod files;
mod held;
mod model;
mod planted;
mod run;
mod tests;
mod transfer;
mod trouble;
mod witness;
mod world;
