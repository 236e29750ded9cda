{{/* The prefix of all names: the release's name, with the chart's name when the release is called otherwise. */}}
{{- define "tidemill.fullname" -}}
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

{{- define "tidemill.operator.fullname" -}}{{ include "tidemill.fullname" . }}-operator{{- end -}}
{{- define "tidemill.gateway.fullname" -}}{{ include "tidemill.fullname" . }}-gateway{{- end -}}

{{- define "tidemill.gateway.keysSecretName" -}}{{ include "tidemill.gateway.fullname" . }}-keys{{- end -}}

{{- define "tidemill.operator.serviceAccountName" -}}
{{- default (include "tidemill.operator.fullname" .) .Values.operator.serviceAccount.name -}}
{{- end -}}
{{- define "tidemill.gateway.serviceAccountName" -}}
{{- default (include "tidemill.gateway.fullname" .) .Values.gateway.serviceAccount.name -}}
{{- end -}}

{{- define "tidemill.operator.image" -}}
{{- printf "%s:%s" .Values.image.operator.repository (default .Chart.AppVersion .Values.image.operator.tag) -}}
{{- end -}}
{{- define "tidemill.engine.image" -}}
{{- printf "%s:%s" .Values.image.engine.repository (default .Chart.AppVersion .Values.image.engine.tag) -}}
{{- end -}}

{{/* Labels that never change: selectors use them. Called with (dict "root" $ "component" "..."). */}}
{{- define "tidemill.selectorLabels" -}}
app.kubernetes.io/name: tidemill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object. Called with (dict "root" $ "component" "..."). */}}
{{- define "tidemill.labels" -}}
{{ include "tidemill.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The gateway pods, as a selector string for the operator. */}}
{{- define "tidemill.gateway.selector" -}}
app.kubernetes.io/name=tidemill,app.kubernetes.io/component=gateway,app.kubernetes.io/instance={{ .Release.Name }}
{{- end -}}

{{/* The operator pods, as a selector string for the policies that the operator makes. */}}
{{- define "tidemill.operator.selector" -}}
app.kubernetes.io/name=tidemill,app.kubernetes.io/component=operator,app.kubernetes.io/instance={{ .Release.Name }}
{{- end -}}

{{/* What makes a pod pass the restricted Pod Security Standard. */}}
{{- define "tidemill.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- define "tidemill.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Probes on the admin port. */}}
{{- define "tidemill.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: admin}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health/live, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /health/ready, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* Where pods may run. Called with the component's values. */}}
{{- define "tidemill.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Bind a ClusterRole: everywhere, or in the watched namespaces only. Called with (dict "root" $ "component" "..."). */}}
{{- define "tidemill.binding" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "tidemill.fullname" $root) .component -}}
{{- $account := include (printf "tidemill.%s.serviceAccountName" .component) $root -}}
{{- $labels := include "tidemill.labels" . -}}
{{- range $namespace := default (list "") $root.Values.watchNamespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "RoleBinding" "ClusterRoleBinding" (ne $namespace "") }}
metadata:
  name: {{ $name }}
  {{- if $namespace }}
  namespace: {{ $namespace }}
  {{- end }}
  labels: {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end -}}
