{{/* The full name, which is the name of most objects. */}}
{{- define "nfs-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The namespace of the objects. */}}
{{- define "nfs-operator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "nfs-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nfs-operator.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $labels := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" "nfs-operator" "app.kubernetes.io/component" "operator" "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" $chart -}}
{{- toYaml (merge (include "nfs-operator.selectorLabels" . | fromYaml) .Values.commonLabels $labels) -}}
{{- end -}}

{{/* The labels of the operator's pods. */}}
{{- define "nfs-operator.podLabels" -}}
{{- toYaml (merge (include "nfs-operator.selectorLabels" . | fromYaml) .Values.podLabels (include "nfs-operator.labels" . | fromYaml)) -}}
{{- end -}}

{{/* The labels of the pods of hooks: the root, their name and their component. No selector of the operator's pods matches them. */}}
{{- define "nfs-operator.hookPodLabels" -}}
{{- $root := index . 0 -}}
{{- $name := dict "app.kubernetes.io/name" (index . 1) "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $component := dict "app.kubernetes.io/component" (index . 2) -}}
{{- toYaml (merge $name $root.Values.podLabels $component (include "nfs-operator.labels" $root | fromYaml)) -}}
{{- end -}}

{{- define "nfs-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "nfs-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: set the name of an existing ServiceAccount, or let the chart create one (serviceAccount.create)" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Fails in the namespace in which the operator refuses to run. */}}
{{- define "nfs-operator.checkNamespace" -}}
{{- if eq (include "nfs-operator.namespace" .) "kube-system" -}}
{{- fail "namespace kube-system: the operator may create Secrets and Leases in its namespace, and those of kube-system control the cluster; use a namespace of its own, such as nfs-operator-system" -}}
{{- end -}}
{{- end -}}

{{/* The provisioner names of the operator, as a list in CEL. */}}
{{- define "nfs-operator.provisioners" -}}
{{- $names := concat .Values.operator.provisionerNames (keys .Values.operator.provisionerAliases | sortAlpha) -}}
{{- range .Values.operator.extraEnv -}}
{{- if and (eq .name "PROVISIONER_NAME") .value -}}
{{- $names = append $names .value -}}
{{- end -}}
{{- end -}}
['{{ $names | uniq | join "', '" }}']
{{- end -}}

{{/* The provisioner names that can be those of a CSIDriver, as a list in JSON. */}}
{{- define "nfs-operator.csiDrivers" -}}
{{- $drivers := list -}}
{{- range .Values.operator.provisionerNames -}}
{{- if and (le (len .) 63) (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" .) -}}
{{- $drivers = append $drivers . -}}
{{- end -}}
{{- end -}}
{{ toJson $drivers }}
{{- end -}}

{{- define "nfs-operator.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- with .Values.image -}}
{{- $repository := list $registry .repository | compact | join "/" -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secrets of the registry, as a list in JSON. Charts write them as names or as objects. */}}
{{- define "nfs-operator.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat .Values.imagePullSecrets (default list .Values.global.imagePullSecrets) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with $secrets | uniq }}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* "true" if replicas may stand by. */}}
{{- define "nfs-operator.elects" -}}
{{- if or .Values.leaderElection (gt (int .Values.replicaCount) 1) -}}true{{- end -}}
{{- end -}}

{{/* What every pod of the chart has in common. */}}
{{- define "nfs-operator.podSpec" -}}
# The operator finds the API server through the environment of its pod; it needs no other Service
# there.
enableServiceLinks: false
{{- with include "nfs-operator.imagePullSecrets" . }}
imagePullSecrets: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
# The image is for Linux only.
nodeSelector: {{- toYaml (merge (deepCopy .Values.nodeSelector) (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The security context of the operator's pods. */}}
{{- define "nfs-operator.operatorSecurityContext" -}}
{{- $context := deepCopy .Values.podSecurityContext -}}
{{- if and .Values.reservedPorts (not .Values.hostNetwork) -}}
{{- /* Servers with the option `secure` allow only source ports below 1024. This is a safe sysctl that applies only to this pod. */ -}}
{{- $sysctls := list (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0") -}}
{{- range $context.sysctls -}}
{{- if ne .name "net.ipv4.ip_unprivileged_port_start" }}{{ $sysctls = append $sysctls . }}{{ end -}}
{{- end -}}
{{- $_ := set $context "sysctls" $sysctls -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* Fails on a flag in `operator.extraArgs`, or its variable in `operator.extraEnv`, that the chart sets from another value or on which other objects of the chart depend. */}}
{{- define "nfs-operator.checkExtraFlags" -}}
{{- $values := dict
  "http-addr" "httpPort" "probe-addr" "probePort" "metrics-token-file" "metricsToken"
  "log-format" "operator.logFormat" "provisioner-name" "operator.provisionerNames"
  "provisioner-alias" "operator.provisionerAliases" "concurrency" "operator.concurrency"
  "retry-min" "operator.retryMin" "retry-max" "operator.retryMax"
  "scan-interval" "operator.scanInterval" "count-rate" "operator.countRate"
  "volume-metrics" "operator.volumeMetrics" "leader-elect" "leaderElection"
  "lease-duration" "operator.lease.duration" "renew-deadline" "operator.lease.renewDeadline"
  "retry-period" "operator.lease.retryPeriod" "cluster-lock-namespace" "operator.lease.clusterLockNamespace" -}}
{{- $fixed := list "records-secret" "records-namespace" "lease-name" "lease-namespace" "instance" -}}
{{- $given := list -}}
{{- range .Values.operator.extraArgs -}}
{{- $given = append $given (list "extraArgs" . (regexFind "^--[a-z-]+" . | trimPrefix "--")) -}}
{{- end -}}
{{- range .Values.operator.extraEnv -}}
{{- if hasPrefix "NFS_OPERATOR_" .name -}}
{{- $given = append $given (list "extraEnv" .name (trimPrefix "NFS_OPERATOR_" .name | lower | replace "_" "-")) -}}
{{- end -}}
{{- end -}}
{{- range $given -}}
{{- $flag := index . 2 -}}
{{- if hasKey $values $flag -}}
{{- fail (printf "operator.%s: %s: the chart sets this itself; use the value %s" (index . 0) (index . 1) (get $values $flag)) -}}
{{- else if has $flag $fixed -}}
{{- fail (printf "operator.%s: %s: cannot be changed with the chart, because its roles and its admission policy depend on it" (index . 0) (index . 1)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if the Job upgrades the CRDs. */}}
{{- define "nfs-operator.upgradesCrds" -}}
{{- if not .Values.crds.keep -}}
{{- fail "crds.keep: must be true: Helm never deletes the CRDs, because that would delete all backends, archives and backups; docs/install.md describes how to remove them (Uninstalling)" -}}
{{- end -}}
{{- if and .Values.crds.enabled .Values.crds.upgrade -}}true{{- end -}}
{{- end -}}

{{/* The class that `helm test` uses; empty if there is none. */}}
{{- define "nfs-operator.testClass" -}}
{{- default (keys .Values.storageClasses | sortAlpha | first | default "") .Values.tests.storageClass -}}
{{- end -}}
