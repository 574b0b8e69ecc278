# The front door. Every command a person needs is one word here; `make` alone lists them.
# What each word does, and which variables it takes, is said once, in tools/verbs.py.
# Variables count only when typed on the command line, and reach the program as plain data:
# make neither expands them nor exports them; tools/front.py reads MAKEOVERRIDES, as make keeps it.

override SHELL := /bin/sh
override TARGETS := help setup doctor cluster-up cluster-status cluster-probe link cluster-down \
                    run compare scale bench predict collect proof runs runs-clean ray-up ray-down \
                    base-image test check benchmarks bench-ddp lessons
# Words that say more about the target before them: make proof algorithms.
override WORDS := $(if $(filter proof,$(MAKECMDGOALS)),algorithms)
override UNKNOWN := $(filter-out $(TARGETS) $(WORDS),$(MAKECMDGOALS))
override TYPED := $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v))
override export DDPLAB_GOALS := $(MAKECMDGOALS)
override export DDPLAB_TYPED := $(MAKEOVERRIDES)
unexport $(TYPED)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.PHONY: $(TARGETS) $(WORDS) $(wildcard $(UNKNOWN))

$(TARGETS):
	@/bin/sh tools/front.sh $@

ifneq ($(WORDS),)
$(WORDS):
	@:
endif

# A word that is no target, whether or not a file of that name exists.
ifneq ($(wildcard $(UNKNOWN)),)
$(wildcard $(UNKNOWN)):
	@/bin/sh tools/front.sh unknown
endif
.DEFAULT:
	@/bin/sh tools/front.sh unknown
